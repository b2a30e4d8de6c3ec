//! What frames are called: looked up by a thread of its own, only for frames that are shown, and kept.

use super::Message;
use super::view::Frame;
use grapnel_analysis::modules::Modules;
use grapnel_analysis::report::stack::place_of;
use grapnel_analysis::report::words::harmless;
use grapnel_analysis::symbols::{FileStore, SearchPath, Symbols};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use unicode_width::UnicodeWidthChar;

/// More names than that are forgotten, and looked up again when they are shown.
const MOST: usize = 1 << 16;
/// Longer names are cut: no terminal shows as much.
const LONGEST: usize = 4096;

/// A frame's name, as it can stand in a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) function: String,
    pub(super) place: String,
    pub(super) inlined: bool,
}

/// Frames to look up.
#[derive(Debug)]
pub(super) struct Lookup {
    modules: Arc<Modules>,
    frames: Vec<Frame>,
}

/// Frames that were looked up, by their nodes; each with those that were inlined into it first.
pub(super) type Found = Vec<(u32, Vec<Label>)>;

/// The names that are known.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: HashMap<u32, Vec<Label>>,
    asked: HashSet<u32>,
    wanted: Vec<Frame>,
}

impl Names {
    /// What a frame is called; until that is known, where it lies.
    pub(super) fn labels(&mut self, frame: Frame, modules: &Modules) -> Vec<Label> {
        if let Some(labels) = self.known.get(&frame.id) {
            return labels.clone();
        }
        if self.asked.insert(frame.id) {
            self.wanted.push(frame);
        }
        vec![unnamed(frame, modules)]
    }

    /// What has been shown without its name since this was last asked.
    pub(super) fn take_wanted(&mut self, modules: &Arc<Modules>) -> Option<Lookup> {
        let frames = std::mem::take(&mut self.wanted);
        (!frames.is_empty()).then(|| Lookup { modules: Arc::clone(modules), frames })
    }

    pub(super) fn learn(&mut self, found: Found) {
        if self.known.len() + found.len() > MOST {
            self.known.clear();
        }
        for (id, labels) in found {
            self.asked.remove(&id);
            self.known.insert(id, labels);
        }
    }
}

fn unnamed(frame: Frame, modules: &Modules) -> Label {
    let module = modules.get(frame.node.module);
    let place = clean(&place_of(&frame.node, module, None));
    let function = frame.node.mark().unwrap_or("??");
    Label { function: function.into(), place, inlined: false }
}

/// Looks up what it is sent. A thread's work.
pub(super) fn look_up(search: SearchPath, lookups: &Receiver<Lookup>, send: &Sender<Message>) {
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    for lookup in lookups {
        // One by one: the first time that a file is needed takes long.
        for frame in &lookup.frames {
            let found = vec![(frame.id, named(*frame, &lookup.modules, &mut symbols))];
            if send.send(Message::Names(found)).is_err() {
                return;
            }
        }
    }
}

/// As [`look_up`], at once.
pub(super) fn look_up_now(search: SearchPath, lookup: &Lookup) -> Found {
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    lookup.frames.iter().map(|&frame| (frame.id, named(frame, &lookup.modules, &mut symbols))).collect()
}

fn named(frame: Frame, modules: &Modules, symbols: &mut Symbols<'_>) -> Vec<Label> {
    if frame.node.is_truncation() {
        return vec![unnamed(frame, modules)];
    }
    let module = modules.get(frame.node.module);
    let label = |found: &grapnel_analysis::symbols::Frame| Label {
        function: clean(found.function().unwrap_or("??")),
        place: clean(&place_of(&frame.node, module, Some(found))),
        inlined: found.inlined(),
    };
    symbols.frames(modules, &frame.node).iter().map(label).collect()
}

/// Foreign text as it can stand in a cell of a screen: besides what [`harmless`] does, nothing is without a width, so that it
/// takes as many columns as are counted, and nothing is endless.
pub(super) fn clean(text: &str) -> String {
    let end = text.char_indices().nth(LONGEST).map_or(text.len(), |(at, _)| at);
    let mut out = String::new();
    for c in harmless(&text[..end]).chars() {
        if c.width().unwrap_or(0) == 0 {
            // Writing into a string never fails.
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_analysis::stacks::Node;

    #[test]
    fn each_frame_is_asked_for_once_until_it_is_known() {
        let frame = |id| Frame { id, node: Node { parent: 0, module: 0, pc: 0x1234, flags: 0 } };
        let (mut names, modules) = (Names::default(), Arc::new(Modules::default()));
        assert_eq!(names.labels(frame(7), &modules)[0].place, "[0x1234]");
        names.labels(frame(7), &modules);
        assert_eq!(names.take_wanted(&modules).unwrap().frames, [frame(7)]);
        names.labels(frame(7), &modules);
        assert!(names.take_wanted(&modules).is_none());
        let label = Label { function: "f".into(), place: "here".into(), inlined: false };
        names.learn(vec![(7, vec![label.clone()])]);
        assert_eq!(names.labels(frame(7), &modules), [label]);
        // Of more than are kept none is lost for good.
        names.learn((0..MOST as u32).map(|id| (100 + id, Vec::new())).collect());
        names.labels(frame(7), &modules);
        assert_eq!(names.take_wanted(&modules).unwrap().frames, [frame(7)]);
    }

    #[test]
    fn foreign_text_takes_the_columns_that_are_counted() {
        assert_eq!(clean("a\x1b[2J\nb\u{202e}c"), "a\\u{1b}[2J\\nb\\u{202e}c");
        assert_eq!(clean("e\u{301}x\u{fe0f}"), "e\\u{301}x\\u{fe0f}");
        assert_eq!(clean("日本"), "日本");
        assert_eq!(clean(&"x".repeat(10_000)).len(), LONGEST);
    }
}

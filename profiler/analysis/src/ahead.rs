//! Reads a trace ahead of whoever adds it up, in a thread of its own.
//!
//! Decompressing, decoding and numbering the nodes take about as long as adding up, and none needs the other.

use crate::analyse::{Ending, Violation};
use crate::hash::AddressMap;
use crate::numbering::Numbering;
use crate::stacks::{Node, Stacks};
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::reader::Reader;
use grapnel_trace::{Event, Module};
use std::io::Read;
use std::ops::ControlFlow;
use std::sync::mpsc::{self, Sender};
use std::thread;

/// Events of the heap in a stretch, enough for the hand-over to cost nothing beside them.
const MOST: usize = 2048;
/// Other events in a stretch.
const MOST_OTHERS: usize = 512;
/// Stretches that are under way.
const STRETCHES: usize = 4;

/// Events that follow each other. Their stacks are ids of nodes; the nodes themselves are not among them.
#[derive(Debug, Default)]
pub(crate) struct Stretch {
    /// Those of the heap.
    pub(crate) heap: Vec<HeapEvent>,
    /// All others.
    pub(crate) others: Vec<Other>,
    /// How many events of the trace come before its first, and before the one after its last.
    pub(crate) before: u64,
    pub(crate) until: u64,
}

/// An event that isn't of the heap.
#[derive(Debug)]
pub(crate) struct Other {
    /// It comes before this event of the heap.
    pub(crate) at: usize,
    /// How many events of the trace come before the one after it.
    pub(crate) until: u64,
    pub(crate) event: Event,
}

/// Who is told of modules as soon as there are stacks in them.
struct Told {
    to: Sender<Module>,
    /// Those that it wasn't told of yet.
    modules: AddressMap<Module>,
    /// That of the last node.
    last: u32,
}

impl Told {
    fn of_node(&mut self, module: u32) {
        if module != self.last {
            self.last = module;
            // It may have heard enough.
            let _ = self.modules.remove(&u64::from(module)).map(|module| self.to.send(module));
        }
    }
}

/// A trace that is being read.
pub(crate) struct Ahead<R: Read + Send> {
    reader: Reader<R>,
    nodes: Numbering,
    events: u64,
    most: u64,
    ending: Option<Ending>,
    told: Option<Told>,
}

/// What is known once a trace was read.
pub(crate) struct Done<R: Read + Send> {
    pub(crate) reader: Reader<R>,
    pub(crate) stacks: Stacks,
    /// Events that were read.
    pub(crate) events: u64,
    /// How it ended; `None` if not all was to be read.
    pub(crate) ending: Option<Ending>,
}

impl<R: Read + Send> Ahead<R> {
    /// Nothing is read yet. At most `most` events will be.
    pub(crate) fn new(reader: Reader<R>, most: u64) -> Self {
        Self { reader, nodes: Numbering::default(), events: 0, most, ending: None, told: None }
    }

    /// The same, and `to` is told of each module as soon as a stack comes that has a frame in it.
    pub(crate) fn telling(self, to: Sender<Module>) -> Self {
        Self { told: Some(Told { to, modules: AddressMap::default(), last: 0 }), ..self }
    }

    /// What it reads.
    pub(crate) fn reader(&self) -> &Reader<R> {
        &self.reader
    }

    /// How many events were read.
    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    /// The nodes so far.
    pub(crate) fn stacks(&self) -> &Stacks {
        self.nodes.stacks()
    }

    /// Reads the next stretch, and says how the trace ends if this was the last of it. Of a trace that still grows
    /// [`Ending::Cut`] means that there is no more now: it may be asked again.
    pub(crate) fn next(&mut self, stretch: &mut Stretch) -> Option<Ending> {
        self.fill(stretch);
        self.ending.take()
    }

    /// Hands all stretches to `take`, in order, until it breaks off.
    pub(crate) fn each(mut self, mut take: impl FnMut(&mut Stretch) -> ControlFlow<()>) -> Done<R> {
        let (ahead, to) = (&mut self, &mut take);
        let read_ahead = thread::scope(move |scope| {
            let (give_back, empty) = mpsc::channel();
            let (send, filled) = mpsc::channel();
            (0..STRETCHES).for_each(|_| drop(give_back.send(Stretch::default())));
            let reading = || {
                // Both ends go with this thread, which the other one notices.
                let send = send;
                for mut stretch in empty {
                    let goes_on = ahead.fill(&mut stretch);
                    if send.send(stretch).is_err() || !goes_on {
                        break;
                    }
                }
            };
            let started = thread::Builder::new().name("trace".into()).spawn_scoped(scope, reading);
            if started.is_err() {
                return false;
            }
            for mut stretch in filled {
                if to(&mut stretch).is_break() {
                    break;
                }
                // Nobody takes it once all is read.
                let _ = give_back.send(stretch);
            }
            true
        });
        // Where no thread can be had, one does both.
        let mut stretch = Stretch::default();
        let mut goes_on = !read_ahead;
        while goes_on {
            goes_on = self.fill(&mut stretch) && take(&mut stretch).is_continue();
        }
        Done {
            reader: self.reader,
            stacks: self.nodes.into_stacks(),
            events: self.events,
            ending: self.ending,
        }
    }

    /// Reads the next stretch; false if it is the last.
    fn fill(&mut self, stretch: &mut Stretch) -> bool {
        stretch.heap.clear();
        stretch.others.clear();
        stretch.before = self.events;
        while self.ending.is_none()
            && self.events < self.most
            && stretch.heap.len() < MOST
            && stretch.others.len() < MOST_OTHERS
            // So that what there was at a mark can be told from what came behind it.
            && !stretch.others.last().is_some_and(|other| matches!(other.event, Event::Mark(_)))
        {
            self.ending = self.read(stretch);
        }
        self.settle(stretch);
        stretch.until = self.events;
        self.ending.is_none() && self.events < self.most
    }

    /// Puts ids of nodes in the place of their numbers.
    fn settle(&mut self, stretch: &mut Stretch) {
        if let Err(violation) = self.nodes.settle() {
            // Which of these events come before that node is not known any more.
            stretch.heap.clear();
            stretch.others.clear();
            self.events = stretch.before;
            self.ending = Some(Ending::Impossible(violation));
            return;
        }
        self.nodes.translate(&mut stretch.heap, stretch.others.iter_mut().map(|other| &mut other.event));
    }

    /// Reads events of the heap and one other.
    fn read(&mut self, stretch: &mut Stretch) -> Option<Ending> {
        let from = stretch.heap.len();
        let left = usize::try_from(self.most - self.events).unwrap_or(MOST);
        let most = MOST.min(from.saturating_add(left));
        let next = self.reader.next_batch(&mut stretch.heap, most);
        let checked = self.nodes.check_all(&mut stretch.heap, from);
        self.events += (stretch.heap.len() - from) as u64;
        if let Err(violation) = checked {
            self.events += 1;
            return Some(Ending::Impossible(violation));
        }
        match next {
            Ok(Some(event)) => {
                self.events += 1;
                self.other(event, stretch).err().map(Ending::Impossible)
            }
            Ok(None) if stretch.heap.len() == most => None,
            Ok(None) if self.reader.end().is_some() => Some(Ending::InOrder),
            Ok(None) => Some(Ending::Cut),
            Err(error) => Some(Ending::Damaged(error)),
        }
    }

    fn other(&mut self, mut event: Event, stretch: &mut Stretch) -> Result<(), Violation> {
        match (&event, &mut self.told) {
            (Event::Node { module, .. }, Some(told)) => told.of_node(*module),
            (Event::Module(module), Some(told)) => {
                drop(told.modules.insert(module.id.into(), module.clone()))
            }
            _ => {}
        }
        if let Event::Node { id, parent, pc, module, flags } = event {
            return self.nodes.push(id, &Node { parent, module, pc, flags });
        }
        self.nodes.check_other(&mut event)?;
        stretch.others.push(Other { at: stretch.heap.len(), until: self.events, event });
        Ok(())
    }
}

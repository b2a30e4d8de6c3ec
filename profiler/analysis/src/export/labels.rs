//! Frames as Valgrind's tools write them: `0xADDRESS: FUNCTION (FILE:LINE)`, or `(in MODULE)` where no line is known.

use super::stack::{NO_STACK, name};
use crate::Analysis;
use crate::report::words::harmless;
use crate::stacks::Node;
use crate::symbols::{Frame, Symbols};
use std::collections::HashMap;

/// Texts of frames, each once, by number.
#[derive(Default)]
pub(super) struct Labels {
    texts: Vec<String>,
    known: HashMap<String, u32>,
    /// By module, address and flags.
    places: HashMap<(u32, u64, u8), Vec<u32>>,
}

impl Labels {
    /// All texts, in the order of their numbers.
    pub(super) fn texts(&self) -> &[String] {
        &self.texts
    }

    pub(super) fn text(&self, label: u32) -> &str {
        &self.texts[label as usize]
    }

    /// What stands for a stack that is not known.
    pub(super) fn of_no_stack(&mut self) -> u32 {
        self.of_text(format!("0x0: {NO_STACK}"))
    }

    /// A node's frames, innermost first.
    pub(super) fn of_node(&mut self, analysis: &Analysis, symbols: &mut Symbols<'_>, node: &Node) -> &[u32] {
        let key = (node.module, node.pc, node.flags);
        if !self.places.contains_key(&key) {
            let texts = if let Some(mark) = node.mark() {
                vec![format!("0x0: {mark}")]
            } else {
                let frames = symbols.frames(&analysis.modules, node);
                frames.iter().map(|frame| text(analysis, node, frame)).collect()
            };
            let labels = texts.into_iter().map(|text| self.of_text(text)).collect();
            self.places.insert(key, labels);
        }
        &self.places[&key]
    }

    fn of_text(&mut self, text: String) -> u32 {
        if let Some(&known) = self.known.get(&text) {
            return known;
        }
        let index = self.texts.len() as u32;
        self.texts.push(text.clone());
        self.known.insert(text, index);
        index
    }
}

fn text(analysis: &Analysis, node: &Node, frame: &Frame) -> String {
    let place = match (frame.file(), frame.line()) {
        (Some(file), Some(line)) => {
            let file = file.rsplit('/').next().unwrap_or_default();
            format!(" ({}:{line})", harmless(file))
        }
        _ => match analysis.modules.get(node.module) {
            Some(module) => format!(" (in {})", harmless(&String::from_utf8_lossy(&module.path))),
            None => String::new(),
        },
    };
    format!("{:#X}: {}{place}", node.pc, name(analysis, node, frame)).replacen("0X", "0x", 1)
}

//! A profile for speedscope: a view for each measure, of which the user chooses.

use super::stack::frames;
use super::{Measure, command};
use crate::Analysis;
use crate::report::words::harmless;
use crate::symbols::Symbols;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{self, Write};

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u32>,
}

/// What is looked up while the file is written. The cell is for that: to serialize takes `&self`.
struct Source<'r, 's, 'a> {
    analysis: &'r Analysis,
    symbols: RefCell<&'s mut Symbols<'a>>,
    frames: RefCell<(Vec<Frame>, HashMap<Frame, u32>)>,
    chosen: Measure,
}

impl Source<'_, '_, '_> {
    /// The frames of a stack, root first, as numbers.
    fn stack(&self, stack: u32) -> Vec<u32> {
        let mut known = self.frames.borrow_mut();
        let mut numbers = Vec::new();
        frames(self.analysis, &mut self.symbols.borrow_mut(), stack, |_, frame| {
            let (list, index) = &mut *known;
            let file = frame.file.map(|file| harmless(file).into_owned());
            let frame = Frame { name: frame.name.into_owned(), file, line: frame.line };
            let number = *index.entry(frame.clone()).or_insert_with(|| {
                list.push(frame);
                list.len() as u32 - 1
            });
            numbers.push(number);
        });
        numbers.reverse();
        numbers
    }
}

impl Serialize for Source<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut file = serializer.serialize_map(None)?;
        file.serialize_entry("$schema", SCHEMA)?;
        file.serialize_entry("name", &command(self.analysis))?;
        file.serialize_entry("exporter", concat!("grapnel ", env!("CARGO_PKG_VERSION")))?;
        let active = Measure::ALL.iter().position(|measure| *measure == self.chosen);
        file.serialize_entry("activeProfileIndex", &active)?;
        file.serialize_entry("profiles", &Measure::ALL.map(|measure| View { source: self, measure }))?;
        // They are all known only now.
        file.serialize_entry("shared", &Shared { frames: &self.frames.borrow().0 })?;
        file.end()
    }
}

#[derive(Serialize)]
struct Shared<'f> {
    frames: &'f [Frame],
}

struct View<'v, 'r, 's, 'a> {
    source: &'v Source<'r, 's, 'a>,
    measure: Measure,
}

impl Serialize for View<'_, '_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sites = || self.source.analysis.sites.iter().filter(|site| self.measure.of(site) > 0);
        let mut view = serializer.serialize_map(None)?;
        view.serialize_entry("type", "sampled")?;
        view.serialize_entry("name", self.measure.title())?;
        view.serialize_entry("unit", if self.measure.is_bytes() { "bytes" } else { "none" })?;
        view.serialize_entry("startValue", &0)?;
        view.serialize_entry(
            "endValue",
            &sites().map(|site| self.measure.of(site)).fold(0, u64::saturating_add),
        )?;
        view.serialize_entry("samples", &Each::from(sites().map(|site| self.source.stack(site.stack))))?;
        view.serialize_entry("weights", &Each::from(sites().map(|site| self.measure.of(site))))?;
        view.end()
    }
}

/// A list that is made while it is written.
struct Each<I>(RefCell<Option<I>>);

impl<I> From<I> for Each<I> {
    fn from(items: I) -> Self {
        Self(RefCell::new(Some(items)))
    }
}

impl<I: Iterator<Item: Serialize>> Serialize for Each<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.take().into_iter().flatten())
    }
}

pub(super) fn write(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    chosen: Measure,
) -> io::Result<()> {
    let source = Source { analysis, symbols: RefCell::new(symbols), frames: RefCell::default(), chosen };
    serde_json::to_writer(&mut *out, &source)?;
    out.write_all(b"\n")
}

//! What the program mapped by itself, as text and as JSON.

use super::json::FrameList;
use super::stack::StackPrinter;
use super::text::{Palette, TextOptions};
use super::words::{counted, duration, human_bytes, mapped_name};
use crate::Analysis;
use crate::mappings::{MappingAnalysis, MappingFigures, MappingSite};
use crate::symbols::Symbols;
use grapnel_trace::Mapped;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};
use std::cell::RefCell;
use std::io::{self, Write};

/// Writes the section, if anything was mapped.
pub(super) fn section(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    options: &TextOptions,
) -> io::Result<()> {
    let MappingAnalysis { totals, peak_time_ns, kinds, sites } = &analysis.mappings;
    if totals.mappings == 0 {
        return Ok(());
    }
    let Palette { title, figure, faint, .. } = options.palette;
    writeln!(out, "{title}Mappings, which are no part of the figures above{title:#}")?;
    for (name, value, rest) in [
        (
            "mapped",
            totals.mapped_bytes,
            format!("{} in {}", counted(totals.mapped_bytes, "byte"), counted(totals.mappings, "mapping")),
        ),
        (
            "peak",
            totals.peak_bytes,
            format!("{}, first at {}", counted(totals.peak_bytes, "byte"), duration(*peak_time_ns)),
        ),
        (
            "live at end",
            totals.live_bytes,
            format!("{} in {}", counted(totals.live_bytes, "byte"), counted(totals.live_mappings, "range")),
        ),
    ] {
        let value = human_bytes(value);
        writeln!(out, "  {name:<12}{figure}{value:>12}{figure:#}   {rest}")?;
    }
    let known = Mapped::ALL.into_iter().filter(|&mapped| kinds[mapped as usize].mappings != 0);
    let of = |mapped: Mapped| {
        let MappingFigures { mappings, peak_bytes, .. } = kinds[mapped as usize];
        format!("{} {}, at most {}", counted(mappings, "time"), mapped_name(mapped), human_bytes(peak_bytes))
    };
    writeln!(out, "  {faint}{}{faint:#}", known.map(of).collect::<Vec<_>>().join("; "))?;
    let context = |site: &MappingSite| {
        let MappingFigures { mappings, mapped_bytes, live_bytes, peak_bytes, .. } = site.figures;
        let kinds: Vec<&str> = site.kinds().map(mapped_name).collect();
        format!(
            "{} at the peak; {} of {} in all, {}; {} live at the end",
            counted(peak_bytes, "byte"),
            counted(mappings, "mapping"),
            human_bytes(mapped_bytes),
            kinds.join(" and "),
            human_bytes(live_bytes)
        )
    };
    let peak = |site: &MappingSite| (site.figures.peak_bytes, site.stack);
    StackPrinter { analysis, symbols, options }.ranked(out, sites, totals.peak_bytes, peak, context)
}

/// As JSON. Looks frames up while it is written.
pub(super) struct MappingsForm<'r, 's, 'a> {
    pub(super) analysis: &'r Analysis,
    pub(super) symbols: &'r RefCell<&'s mut Symbols<'a>>,
    pub(super) top: usize,
}

#[derive(Serialize)]
struct SiteForm<'r, 's, 'a> {
    #[serde(flatten)]
    figures: MappingFigures,
    kinds: Vec<&'static str>,
    frames: FrameList<'r, 's, 'a>,
}

struct KindsForm<'r>(&'r MappingAnalysis);

impl Serialize for KindsForm<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let kind = |mapped: Mapped| (mapped_name(mapped), self.0.kinds[mapped as usize]);
        serializer.collect_map(Mapped::ALL.into_iter().map(kind))
    }
}

struct SiteList<'f, 'r, 's, 'a>(&'f MappingsForm<'r, 's, 'a>);

impl Serialize for SiteList<'_, '_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let MappingsForm { analysis, symbols, top } = *self.0;
        let shown = if top == 0 { usize::MAX } else { top };
        serializer.collect_seq(analysis.mappings.sites.iter().take(shown).map(|site| SiteForm {
            figures: site.figures,
            kinds: site.kinds().map(mapped_name).collect(),
            frames: FrameList { analysis, symbols, stack: site.stack },
        }))
    }
}

impl Serialize for MappingsForm<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut form = serializer.serialize_map(None)?;
        form.serialize_entry("totals", &self.analysis.mappings.totals)?;
        form.serialize_entry("kinds", &KindsForm(&self.analysis.mappings))?;
        form.serialize_entry("sites", &SiteList(self))?;
        form.end()
    }
}

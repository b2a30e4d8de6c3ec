//! Heaps besides the program's own, as text and as JSON.

use super::json::{Functions, SamplingForm, SiteList};
use super::stack::StackPrinter;
use super::text::{Palette, TextOptions, give_or_take};
use super::words::{counted, duration, grouped, harmless, human_bytes};
use crate::Analysis;
use crate::heaps::HeapAnalysis;
use crate::live::Totals;
use crate::sites::Site;
use crate::symbols::Symbols;
use crate::weight::Errors;
use grapnel_trace::HeapKind;
use serde::Serialize;
use serde::ser::Serializer;
use std::cell::RefCell;
use std::io::{self, Write};

/// What a heap is, in a word.
fn kind_name(kind: HeapKind) -> &'static str {
    match kind {
        HeapKind::Pool => "pool",
        _ => "allocator",
    }
}

/// Writes a section for each.
pub(super) fn sections(
    out: &mut impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    options: &TextOptions,
) -> io::Result<()> {
    for heaps in &analysis.heaps {
        section(out, heaps, analysis, symbols, options)?;
    }
    Ok(())
}

fn section(
    out: &mut impl Write,
    heaps: &HeapAnalysis,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    options: &TextOptions,
) -> io::Result<()> {
    let Palette { title, figure, .. } = options.palette;
    let name = String::from_utf8_lossy(&heaps.name);
    let (what, name) = (if heaps.kind == HeapKind::Pool { "Pool" } else { "Allocator" }, harmless(&name));
    writeln!(out, "{title}{what} {name}, which is no part of the figures above{title:#}")?;
    let totals = &heaps.totals;
    let errors = heaps.sampling.map(|sampling| sampling.errors);
    let of_totals = |of: fn(&Errors) -> f64| give_or_take(errors.as_ref(), of);
    let mut row = |name: &str, value: &str, rest: String| {
        writeln!(out, "  {name:<12}{figure}{value:>12}{figure:#}   {rest}")
    };
    row(
        "allocated",
        &human_bytes(totals.allocated_bytes),
        format!(
            "{}{} in {} and {}",
            counted(totals.allocated_bytes, "byte"),
            of_totals(|errors| errors.allocated_bytes),
            counted(totals.allocations, "allocation"),
            counted(totals.reallocations, "reallocation")
        ),
    )?;
    let first = format!(
        "{}{}, first at {}",
        counted(totals.peak_bytes, "byte"),
        of_totals(|errors| errors.peak_bytes),
        duration(totals.peak_time_ns)
    );
    row("peak", &human_bytes(totals.peak_bytes), first)?;
    let live = format!(
        "{}{} in {}",
        counted(totals.live_bytes, "byte"),
        of_totals(|errors| errors.live_bytes),
        counted(totals.live_allocations, "block")
    );
    row("live at end", &human_bytes(totals.live_bytes), live)?;
    row("freed", &grouped(totals.frees), if totals.frees == 1 { "block" } else { "blocks" }.into())?;
    if heaps.heaps != 1 {
        row(
            "pools",
            &grouped(heaps.heaps),
            format!("of this name; {} at the end", grouped(heaps.live_heaps)),
        )?;
    }
    let context = |site: &Site| {
        format!(
            "{}{} at the peak; {} of {} in all; {} live at the end",
            counted(site.peak_bytes, "byte"),
            give_or_take(errors.map(|_| &site.errors), |errors| errors.peak_bytes),
            counted(site.allocations, "allocation"),
            human_bytes(site.allocated_bytes),
            human_bytes(site.live_bytes)
        )
    };
    let peak = |site: &Site| (site.peak_bytes, site.stack);
    StackPrinter { analysis, symbols, options }.ranked(out, &heaps.sites, totals.peak_bytes, peak, context)
}

/// As JSON. Looks frames up while it is written.
pub(super) struct HeapList<'r, 's, 'a> {
    pub(super) analysis: &'r Analysis,
    pub(super) symbols: &'r RefCell<&'s mut Symbols<'a>>,
    pub(super) top: usize,
}

#[derive(Serialize)]
struct HeapForm<'r, 's, 'a> {
    name: String,
    kind: &'static str,
    heaps: u64,
    live_heaps: u64,
    totals: TotalsForm,
    sampling: Option<SamplingForm>,
    sites: SiteList<'r, 's, 'a>,
}

#[derive(Serialize)]
struct TotalsForm {
    allocations: u64,
    frees: u64,
    reallocations: u64,
    allocated_bytes: u64,
    peak_bytes: u64,
    live_allocations: u64,
    live_bytes: u64,
    functions: Functions,
}

impl Serialize for HeapList<'_, '_, '_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { analysis, symbols, top } = *self;
        serializer.collect_seq(analysis.heaps.iter().map(|heaps| {
            let Totals { allocations, frees, reallocations, allocated_bytes, peak_bytes, .. } = heaps.totals;
            let Totals { live_allocations, live_bytes, .. } = heaps.totals;
            HeapForm {
                name: String::from_utf8_lossy(&heaps.name).into_owned(),
                kind: kind_name(heaps.kind),
                heaps: heaps.heaps,
                live_heaps: heaps.live_heaps,
                totals: TotalsForm {
                    allocations,
                    frees,
                    reallocations,
                    allocated_bytes,
                    peak_bytes,
                    live_allocations,
                    live_bytes,
                    functions: Functions(heaps.functions),
                },
                sampling: heaps.sampling.as_ref().map(SamplingForm::of),
                sites: SiteList {
                    sites: &heaps.sites,
                    analysis,
                    symbols,
                    top,
                    errors: heaps.sampling.is_some(),
                },
            }
        }))
    }
}

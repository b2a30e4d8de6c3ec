//! Questions to a trace: figures of groups of blocks, with filters.
//!
//! What a group is, [`By`] says; which blocks count, a [`Query`]'s other fields. One pass over the trace collects what it
//! takes, beside what every analysis has. What is kept meanwhile is bounded by the live blocks and by the distinct stacks, with as many parts of each as it has sizes,
//! lifetimes or threads; slices of time become wider until they fit.

mod classes;
mod collect;
mod group;
pub mod json;
pub mod text;

use crate::analyse::{Analysis, analyse_with};
use crate::suppressions::Pattern;
use crate::symbols::Symbols;
use collect::Collector;
use grapnel_trace::reader::Reader;
use serde::Serialize;
use std::io::Read;
use std::ops::RangeInclusive;

/// What blocks are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Nothing: all are one group.
    All,
    /// The functions in their stacks.
    Function,
    /// The source files of these.
    File,
    /// The modules of these.
    Module,
    /// The thread that got them.
    Thread,
    /// Their sizes, by powers of two.
    Size,
    /// How long they lived, by powers of ten.
    Lifetime,
    /// When something happened to them.
    Time,
    /// The function that gave them.
    Source,
    /// The first of the patterns of [`Query::groups`] that their stacks match.
    Pattern,
}

/// What groups are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sort {
    /// [`Figures::allocated_bytes`].
    #[default]
    Allocated,
    /// [`Figures::allocations`].
    Allocations,
    /// [`Figures::grown_bytes`], whichever their sign.
    Grown,
    /// [`Figures::temporary_allocations`].
    Temporary,
    /// [`Figures::copied_bytes`].
    Copied,
    /// [`Figures::peak_bytes`].
    Peak,
}

/// A question.
#[derive(Clone, Debug)]
pub struct Query {
    /// What blocks are grouped by.
    pub by: By,
    /// Only what happened from here to there, in nanoseconds since the recording began.
    pub window: RangeInclusive<u64>,
    /// Only blocks of these sizes.
    pub sizes: RangeInclusive<u64>,
    /// Only blocks of threads with such a name or id, if there is any.
    pub threads: Vec<Pattern>,
    /// Only blocks whose stack matches each of these: a function, a source file or a module of it.
    pub keep: Vec<Pattern>,
    /// Only blocks whose stack matches none of these.
    pub drop: Vec<Pattern>,
    /// Names of groups, and what their stacks match.
    pub groups: Vec<(String, Pattern)>,
    /// What groups without an order of their own are sorted by.
    pub sort: Sort,
}

impl Default for Query {
    fn default() -> Self {
        Self {
            by: By::All,
            window: 0..=u64::MAX,
            sizes: 0..=u64::MAX,
            threads: Vec::new(),
            keep: Vec::new(),
            drop: Vec::new(),
            groups: Vec::new(),
            sort: Sort::Allocated,
        }
    }
}

/// What a group's blocks did within the window. The names of its fields are those of the JSON form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Blocks that were given out, by allocations and by reallocations.
    pub allocations: u64,
    /// Their bytes.
    pub allocated_bytes: u64,
    /// Blocks that were given back or handed to a `realloc`.
    pub releases: u64,
    /// By how many the live blocks grew. Over the whole recording these are the blocks live at the end.
    pub grown_blocks: i64,
    /// By how many bytes.
    pub grown_bytes: i64,
    /// Blocks that were freed before their thread allocated again.
    pub temporary_allocations: u64,
    /// Blocks that a `realloc` gave for another one.
    pub reallocations: u64,
    /// Bytes that these copied, since the block could not stay where it was.
    pub copied_bytes: u64,
    /// Bytes that were held at the process's peak, whatever the window.
    pub peak_bytes: u64,
}

impl Figures {
    fn of(&self, sort: Sort) -> u64 {
        match sort {
            Sort::Allocated => self.allocated_bytes,
            Sort::Allocations => self.allocations,
            Sort::Grown => self.grown_bytes.unsigned_abs(),
            Sort::Temporary => self.temporary_allocations,
            Sort::Copied => self.copied_bytes,
            Sort::Peak => self.peak_bytes,
        }
    }

    fn add(&mut self, other: &Self) {
        self.allocations = self.allocations.saturating_add(other.allocations);
        self.allocated_bytes = self.allocated_bytes.saturating_add(other.allocated_bytes);
        self.releases = self.releases.saturating_add(other.releases);
        self.grown_blocks = self.grown_blocks.wrapping_add(other.grown_blocks);
        self.grown_bytes = self.grown_bytes.wrapping_add(other.grown_bytes);
        self.temporary_allocations = self.temporary_allocations.saturating_add(other.temporary_allocations);
        self.reallocations = self.reallocations.saturating_add(other.reallocations);
        self.copied_bytes = self.copied_bytes.saturating_add(other.copied_bytes);
        self.peak_bytes = self.peak_bytes.wrapping_add(other.peak_bytes);
    }
}

/// A group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// What it is called.
    pub name: String,
    /// Of all blocks in whose stacks it is.
    pub figures: Figures,
    /// Of those whose stack's leaf it is, where it is part of stacks.
    pub own: Option<Figures>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The groups: in their own order where they have one (sizes, lifetimes, times), else by [`Query::sort`].
    pub rows: Vec<Row>,
    /// All blocks that count, each once.
    pub whole: Figures,
    /// Bytes that were live at the window's start, of the blocks that count.
    pub live_before: u64,
}

/// What a pass over a trace collected for a question.
pub struct Gathered<'q> {
    query: &'q Query,
    collected: collect::Collected,
}

impl core::fmt::Debug for Gathered<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Gathered({} groups of stacks)", self.collected.cells.len())
    }
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswered {
    /// What single blocks did is not known.
    #[error(
        "it has a sample of the allocations only: record it without --sample and --budget, or ask for a report"
    )]
    Sample,
}

/// As [`crate::analyse()`], and collects what a question needs.
///
/// # Errors
/// When the trace is a sample.
pub fn gather<R: Read + Send>(
    reader: Reader<R>,
    query: &Query,
) -> Result<(Analysis, Gathered<'_>), Unanswered> {
    let (analysis, _, collector) = analyse_with(reader, Collector::new(query));
    if analysis.sampling.is_some() {
        return Err(Unanswered::Sample);
    }
    Ok((analysis, Gathered { query, collected: collector.finish() }))
}

impl Gathered<'_> {
    /// The answer, with the names of stacks.
    pub fn answer(self, analysis: &Analysis, symbols: &mut Symbols<'_>) -> Answer {
        group::answer(self.collected, analysis, symbols, self.query)
    }
}

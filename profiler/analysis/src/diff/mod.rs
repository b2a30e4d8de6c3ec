//! Two traces side by side: which sites came, which went, which grew.
//!
//! A site is here a stack of functions by their names: addresses, and lines too, are others in another build. What has no name
//! is known by its module's name and its offset there. Figures can be made comparable where one recording was longer than the
//! other: those of the first are multiplied by the ratio of the durations, or of the numbers of allocations.

pub mod json;
pub mod text;

use crate::Analysis;
use crate::export::Measure;
use crate::export::stack::frames;
use crate::sites::Site;
use crate::symbols::Symbols;
use std::collections::HashMap;

/// How figures are made comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Normalize {
    /// They are compared as they are.
    #[default]
    Not,
    /// By the recordings' durations.
    Time,
    /// By their numbers of allocations and reallocations.
    Count,
}

/// What there is of a site in one trace, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// By the places of [`Measure::ALL`].
    values: [u64; Measure::ALL.len()],
}

impl Figures {
    /// The figure that a measure stands for.
    pub fn of(&self, measure: Measure) -> u64 {
        self.values[measure as usize]
    }

    fn add(&mut self, site: &Site) {
        for (value, measure) in self.values.iter_mut().zip(Measure::ALL) {
            *value = value.saturating_add(measure.of(site));
        }
    }

    fn sum(analysis: &Analysis) -> Self {
        let mut sum = Self::default();
        analysis.sites.iter().for_each(|site| sum.add(site));
        sum
    }
}

/// A site of either trace or of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// A stack that it has, the largest: in the second trace if it is there, else in the first.
    pub stack: u32,
    /// Whether it is in the second trace.
    pub is_after: bool,
    /// Its figures in the first trace, as they were recorded.
    pub before: Figures,
    /// In the second.
    pub after: Figures,
}

/// What became of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The first trace has none of it.
    Came,
    /// The second has none of it.
    Went,
    /// There is more of it.
    Grew,
    /// There is less of it.
    Shrank,
    /// It is the same.
    Same,
}

impl Change {
    /// All but the last.
    pub const ALL: [Self; 4] = [Self::Came, Self::Grew, Self::Shrank, Self::Went];
}

/// Two traces compared.
#[derive(Debug)]
pub struct Diff<'a> {
    /// The first trace.
    pub before: &'a Analysis,
    /// The second.
    pub after: &'a Analysis,
    /// How figures were made comparable.
    pub normalize: Normalize,
    /// What the first trace's figures are multiplied by.
    pub factor: f64,
    /// In the order of the second trace, then of the first.
    rows: Vec<Row>,
}

impl<'a> Diff<'a> {
    /// Compares two traces.
    pub fn new(
        (before, before_symbols): (&'a Analysis, &mut Symbols<'_>),
        (after, after_symbols): (&'a Analysis, &mut Symbols<'_>),
        normalize: Normalize,
    ) -> Self {
        let mut names = Names::default();
        let mut rows: Vec<Row> = Vec::new();
        let mut known: HashMap<Vec<u32>, usize> = HashMap::new();
        for site in &after.sites {
            let at = known.entry(names.stack(after, after_symbols, site.stack)).or_insert(rows.len());
            if *at == rows.len() {
                rows.push(Row { stack: site.stack, is_after: true, ..Row::default() });
            }
            rows[*at].after.add(site);
        }
        for site in &before.sites {
            let at = known.entry(names.stack(before, before_symbols, site.stack)).or_insert(rows.len());
            if *at == rows.len() {
                rows.push(Row { stack: site.stack, ..Row::default() });
            }
            rows[*at].before.add(site);
        }
        let ratio = |of: fn(&Analysis) -> u64| of(after) as f64 / of(before) as f64;
        let factor = match normalize {
            Normalize::Not => 1.0,
            Normalize::Time => ratio(|analysis| analysis.totals.duration_ns),
            Normalize::Count => {
                ratio(|analysis| analysis.totals.allocations.saturating_add(analysis.totals.reallocations))
            }
        };
        // Of nothing there is no multiple.
        let factor = if factor.is_finite() && factor > 0.0 { factor } else { 1.0 };
        Self { before, after, normalize, factor, rows }
    }

    /// By how much a figure rose from the first trace, made comparable, to the second.
    pub fn rise(&self, row: &Row, measure: Measure) -> i64 {
        self.difference(row.before.of(measure), row.after.of(measure))
    }

    pub(crate) fn difference(&self, before: u64, after: u64) -> i64 {
        if self.factor == 1.0 {
            return i64::try_from(i128::from(after) - i128::from(before)).unwrap_or(i64::MAX);
        }
        // Saturates.
        (after as f64 - before as f64 * self.factor).round() as i64
    }

    /// What became of a site.
    pub fn change(&self, row: &Row, measure: Measure) -> Change {
        match (row.before.of(measure), row.after.of(measure), self.rise(row, measure)) {
            (0, 0, _) => Change::Same,
            (0, _, _) => Change::Came,
            (_, 0, _) => Change::Went,
            (_, _, rise) => match rise.signum() {
                1 => Change::Grew,
                -1 => Change::Shrank,
                _ => Change::Same,
            },
        }
    }

    /// The sites that changed, those that changed most first.
    pub fn changed(&self, measure: Measure) -> Vec<&Row> {
        let mut rows: Vec<&Row> =
            self.rows.iter().filter(|row| self.change(row, measure) != Change::Same).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(self.rise(row, measure).unsigned_abs()));
        rows
    }

    /// The figures of all sites, of both traces.
    pub fn totals(&self) -> (Figures, Figures) {
        (Figures::sum(self.before), Figures::sum(self.after))
    }
}

/// Numbers for the names of frames.
#[derive(Default)]
struct Names {
    known: HashMap<String, u32>,
}

impl Names {
    fn stack(&mut self, analysis: &Analysis, symbols: &mut Symbols<'_>, stack: u32) -> Vec<u32> {
        let mut numbers = Vec::new();
        frames(analysis, symbols, stack, |_, frame| {
            let next = self.known.len() as u32;
            numbers.push(match self.known.get(&*frame.name) {
                Some(&known) => known,
                None => *self.known.entry(frame.name.into_owned()).or_insert(next),
            });
        });
        numbers
    }
}

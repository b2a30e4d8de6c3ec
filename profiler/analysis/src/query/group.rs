//! From what was collected to groups that have names.

use super::classes::{NEVER, OTHERS, lifetime_name, size_name};
use super::collect::Collected;
use super::{Answer, By, Figures, Query, Row};
use crate::Analysis;
use crate::export::stack::frames;
use crate::hash::FoldHash;
use crate::report::words::{duration, source_name};
use crate::suppressions::Pattern;
use crate::symbols::Symbols;
use grapnel_trace::Source;
use std::collections::{BTreeSet, HashMap};

const NS_PER_MS: u64 = 1_000_000;
/// What is not known by a name.
const UNKNOWN: &str = "[unknown]";

/// What there is to know of a stack, leaf first.
#[derive(Default)]
struct Names {
    functions: Vec<String>,
    files: Vec<String>,
    modules: Vec<String>,
}

impl Names {
    fn of(analysis: &Analysis, symbols: &mut Symbols<'_>, stack: u32) -> Self {
        let mut names = Self::default();
        frames(analysis, symbols, stack, |node, frame| {
            names.functions.push(frame.name.into_owned());
            names.files.push(frame.file.unwrap_or(UNKNOWN).to_owned());
            let module = analysis.modules.get(node.module);
            let path = module.map(|module| String::from_utf8_lossy(&module.path).into_owned());
            names.modules.push(path.unwrap_or_else(|| UNKNOWN.to_owned()));
        });
        names
    }

    fn match_it(&self, pattern: &Pattern) -> bool {
        let all = self.functions.iter().chain(&self.files).chain(&self.modules);
        all.into_iter().any(|name| pattern.matches(name))
    }
}

/// What a stack is for a question.
struct Known {
    counts: bool,
    /// The groups that it is in, the leaf's first; empty where the class alone says it.
    groups: Vec<u32>,
}

#[derive(Default)]
struct Groups {
    names: Vec<String>,
    numbers: HashMap<String, u32>,
    rows: Vec<(Figures, Figures)>,
}

impl Groups {
    fn number(&mut self, name: &str) -> u32 {
        if let Some(&known) = self.numbers.get(name) {
            return known;
        }
        let next = self.names.len() as u32;
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), next);
        self.rows.push(Default::default());
        next
    }
}

pub(super) fn answer(
    collected: Collected,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    query: &Query,
) -> Answer {
    let mut groups = Groups::default();
    let mut known: HashMap<u32, Known, FoldHash> = HashMap::default();
    let mut of_stack = |groups: &mut Groups, stack: u32| {
        let entry = known.entry(stack).or_insert_with(|| {
            // Without names, stacks need not be looked at.
            if !is_by_stack(query.by) && query.keep.is_empty() && query.drop.is_empty() {
                return Known { counts: true, groups: Vec::new() };
            }
            let names = Names::of(analysis, symbols, stack);
            let counts = query.keep.iter().all(|pattern| names.match_it(pattern))
                && !query.drop.iter().any(|pattern| names.match_it(pattern));
            let mut numbers = Vec::new();
            if counts {
                numbers = groups_of(groups, &names, query);
            }
            Known { counts, groups: numbers }
        });
        (entry.counts, entry.groups.clone())
    };
    let mut whole = Figures::default();
    let mut classes: HashMap<u32, Figures, FoldHash> = HashMap::default();
    for ((stack, class), figures) in &collected.cells {
        let (counts, numbers) = of_stack(&mut groups, *stack);
        if !counts {
            continue;
        }
        whole.add(figures);
        if !is_by_stack(query.by) {
            classes.entry(*class).or_default().add(figures);
        }
        for (at, number) in numbers.into_iter().enumerate() {
            let (all, own) = &mut groups.rows[number as usize];
            all.add(figures);
            if at == 0 {
                own.add(figures);
            }
        }
    }
    let live_before = collected.before.iter().filter(|(stack, _)| of_stack(&mut groups, **stack).0);
    let live_before = live_before.fold(0_u64, |sum, (_, bytes)| sum.wrapping_add(*bytes));
    let mut rows: Vec<Row>;
    if is_by_stack(query.by) {
        let has_own = query.by != By::Pattern;
        let row = |(name, (figures, own))| Row { name, figures, own: has_own.then_some(own) };
        rows = groups.names.into_iter().zip(groups.rows).map(row).collect();
    } else {
        let mut by_class: Vec<(u32, Figures)> = classes.into_iter().collect();
        by_class.sort_unstable_by_key(|(class, _)| *class);
        let name = |class| class_name(class, &collected, query);
        rows = by_class
            .into_iter()
            .map(|(class, figures)| Row { name: name(class), figures, own: None })
            .collect();
    }
    if !matches!(query.by, By::Size | By::Lifetime | By::Time) {
        rows.sort_by(|a, b| {
            let figure = |row: &Row| row.figures.of(query.sort);
            figure(b).cmp(&figure(a)).then_with(|| a.name.cmp(&b.name))
        });
    }
    Answer { rows, whole, live_before }
}

fn is_by_stack(by: By) -> bool {
    matches!(by, By::Function | By::File | By::Module | By::Pattern)
}

/// The groups of a stack, the leaf's first, each once.
fn groups_of(groups: &mut Groups, names: &Names, query: &Query) -> Vec<u32> {
    let list = match query.by {
        By::Function => &names.functions,
        By::File => &names.files,
        By::Module => &names.modules,
        By::Pattern => {
            let found = query.groups.iter().find(|(_, pattern)| names.match_it(pattern));
            return vec![groups.number(found.map_or("others", |(name, _)| name))];
        }
        _ => return Vec::new(),
    };
    let mut seen = BTreeSet::new();
    list.iter().map(|name| groups.number(name)).filter(|&number| seen.insert(number)).collect()
}

fn class_name(class: u32, collected: &Collected, query: &Query) -> String {
    if class == OTHERS {
        return "others".to_owned();
    }
    match query.by {
        By::Thread if class == OTHERS - 1 => source_name(Source::Before).to_owned(),
        By::Thread => {
            collected.threads.get(&class).cloned().unwrap_or_else(|| format!("thread {class} of the trace"))
        }
        By::Size => size_name(class),
        By::Lifetime => lifetime_name(class),
        By::Time => {
            let start = u64::from(class) * collected.slice;
            let at = |ms: u64| duration(ms.saturating_mul(NS_PER_MS));
            format!("{} to {}", at(start), at(start + collected.slice))
        }
        By::Source => {
            let source = u8::try_from(class).ok().and_then(Source::from_u8);
            let before = (class == Source::Before as u32).then_some(Source::Before);
            source.or(before).map_or(UNKNOWN, source_name).to_owned()
        }
        _ if class == NEVER => UNKNOWN.to_owned(),
        _ => "all".to_owned(),
    }
}

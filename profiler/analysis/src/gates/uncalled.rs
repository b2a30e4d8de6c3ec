//! Conditions on functions that no stack has: they are met, and nobody would notice that a name is mistyped or out of date.

use super::is_called;
use crate::Analysis;
use crate::export::stack::frames;
use crate::report::words::harmless;
use crate::suppressions::Pattern;
use crate::symbols::Symbols;
use std::collections::BTreeSet;

/// So many names are proposed.
const PROPOSED: usize = 3;
/// A longer name is like no other.
const LONGEST: usize = 256;
/// Symbols that are looked at.
const MOST: usize = 1 << 20;

/// What there is to say where no stack has such a function: nothing if what was loaded has one by its symbols, since it may
/// well have allocated nothing.
pub(super) fn doubt(analysis: &Analysis, symbols: &mut Symbols<'_>, function: &Pattern) -> Option<String> {
    let mut near = Near::new(function.text());
    for site in &analysis.sites {
        frames(analysis, symbols, site.stack, |_, frame| near.see(&frame.name));
    }
    let (mut exists, mut left) = (false, MOST);
    symbols.each_function(&analysis.modules, |name| {
        exists = exists || is_called(function, name);
        near.see(name);
        left -= 1;
        !exists && left > 0
    });
    if exists {
        return None;
    }
    let like = match near.best() {
        names if names.is_empty() => String::new(),
        names => format!("; did you mean {}?", names.join(" or ")),
    };
    Some(format!(
        "no function called {} is in any stack or in the symbols of what was loaded: give its whole name, as a report \
         shows it{like}",
        harmless(function.text())
    ))
}

/// The names that are most like one.
struct Near {
    text: String,
    most: usize,
    /// How far from it, and the name.
    best: BTreeSet<(usize, String)>,
}

impl Near {
    fn new(text: &str) -> Self {
        let text = plain(text).replace('*', "").to_lowercase();
        Self { most: text.chars().count() / 3, text, best: BTreeSet::new() }
    }

    fn see(&mut self, name: &str) {
        if self.text.is_empty() || name.len() > LONGEST || name.starts_with('[') {
            return;
        }
        let short = plain(name).to_lowercase();
        let own = short.rsplit("::").next().unwrap_or_default();
        // Where scopes are left out, or another's given, the name itself is the same.
        let asked = self.text.rsplit("::").next().unwrap_or_default();
        let distance = if own == asked { Some(0) } else { distance(&self.text, &short, self.most) };
        if let Some(distance) = distance {
            self.best.insert((distance, harmless(name).into_owned()));
            if self.best.len() > PROPOSED {
                self.best.pop_last();
            }
        }
    }

    fn best(self) -> Vec<String> {
        self.best.into_iter().map(|(_, name)| name).collect()
    }
}

/// A name without its parameters.
fn plain(name: &str) -> &str {
    name.split_once('(').map_or(name, |(name, _)| name).trim()
}

/// How far one text is from another by optimal string alignment, if not more than `most`.
fn distance(one: &str, two: &str, most: usize) -> Option<usize> {
    if one.chars().count().abs_diff(two.chars().count()) > most {
        return None;
    }
    Some(strsim::osa_distance(one, two)).filter(|&distance| distance <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_alike_are_proposed() {
        assert_eq!(distance("kitten", "sitting", 3), Some(3));
        assert_eq!(distance("kitten", "sitting", 2), None);
        assert_eq!(distance("", "ab", 2), Some(2));
        assert_eq!(distance("mian", "main", 1), Some(1));
        let proposed = |text: &str| {
            let mut near = Near::new(text);
            for name in
                ["store::Bucket::grow(unsigned long)", "parse_lines", "parse_line", "main", "[libc+0x1]"]
            {
                near.see(name);
            }
            near.best()
        };
        assert_eq!(proposed("grow"), ["store::Bucket::grow(unsigned long)"]);
        assert_eq!(proposed("parse_lin"), ["parse_line", "parse_lines"]);
        assert_eq!(proposed("Mian*(int)"), ["main"]);
        assert_eq!(proposed("Parse_Lines"), ["parse_lines", "parse_line"]);
        assert_eq!(proposed("nothing like it"), [""; 0]);
        assert_eq!(proposed("*"), [""; 0]);
    }
}

//! What `grapnel leaks --format json` says, and what it has to say of `programs/lost.c`.

use crate::run::Case;
use crate::{programs, skipped};
use serde_json::Value;
use std::collections::BTreeMap;

/// Whether a site's innermost line is this one. libc's own may have the same number.
fn is_at(site: &Value, source: &str, line: u64) -> bool {
    let innermost = &site["frames"][0];
    innermost["file"].as_str().is_some_and(|file| file.ends_with(source)) && innermost["line"] == line
}

/// Blocks and bytes of each kind of the sites whose innermost line has this mark.
///
/// # Panics
/// If it is no such JSON.
pub fn at(leaks: &Value, source: &str, mark: &str) -> BTreeMap<String, (u64, u64)> {
    let line = programs::marked_line(source, mark);
    let mut found = BTreeMap::new();
    for site in leaks["sites"].as_array().unwrap() {
        if is_at(site, source, line) {
            let sum: &mut (u64, u64) = found.entry(site["kind"].as_str().unwrap().to_owned()).or_default();
            sum.0 += site["blocks"].as_u64().unwrap();
            sum.1 += site["bytes"].as_u64().unwrap();
        }
    }
    found
}

/// The paths of the sites whose innermost line has this mark.
///
/// # Panics
/// If it is no such JSON.
pub fn paths(leaks: &Value, source: &str, mark: &str) -> Vec<Value> {
    let line = programs::marked_line(source, mark);
    let sites = leaks["sites"].as_array().unwrap().iter().filter(|site| is_at(site, source, line));
    sites.flat_map(|site| site["paths"].as_array().unwrap().clone()).collect()
}

/// Kinds with their blocks and bytes.
pub fn kinds(of: &[(&str, u64, u64)]) -> BTreeMap<String, (u64, u64)> {
    of.iter().map(|&(kind, blocks, bytes)| (kind.to_owned(), (blocks, bytes))).collect()
}

/// Blocks and bytes of a kind.
///
/// # Panics
/// If it is no such JSON.
pub fn total(leaks: &Value, kind: &str) -> (u64, u64) {
    let of = &leaks["totals"][kind];
    (of["blocks"].as_u64().unwrap(), of["bytes"].as_u64().unwrap())
}

/// Checks what is said of `lost`: all that it has lost, and all that it holds with what holds it.
///
/// # Panics
/// If it is something else.
pub fn holds_what_it_should(found: &Value) {
    let (list, circle) = (kinds(&[("direct", 1, 48)]), kinds(&[("indirect", 1, 48)]));
    assert_eq!(at(found, "lost.c", "LOST alone"), kinds(&[("direct", 1, 100)]));
    assert_eq!(at(found, "lost.c", "LOST chain"), kinds(&[("direct", 1, 48), ("indirect", 49, 49 * 48)]));
    let both = [at(found, "lost.c", "LOST circle a"), at(found, "lost.c", "LOST circle b")];
    assert!(both == [list.clone(), circle.clone()] || both == [circle, list], "{both:?}");
    assert_eq!(at(found, "lost.c", "LOST root"), kinds(&[("direct", 1, 32)]));
    assert_eq!(at(found, "lost.c", "LOST leaf"), kinds(&[("indirect", 4, 4000)]));
    // Its uppermost byte is no part of its address: that has to be said.
    assert_eq!(at(found, "lost.c", "HELD tagged"), kinds(&[("direct", 1, 15)]));
    let held = |mark: &str, blocks: u64, bytes: u64, kind: &str, name: Option<&str>| {
        assert_eq!(at(found, "lost.c", mark), kinds(&[("reachable", blocks, bytes)]), "{mark}");
        for path in paths(found, "lost.c", mark) {
            assert_eq!(
                (path["root"]["kind"].as_str(), path["root"]["name"].as_str()),
                (Some(kind), name),
                "{path}"
            );
        }
    };
    held("HELD global", 1, 11, "global", Some("global"));
    held("HELD table", 1, 12, "global", Some("table"));
    assert_eq!(paths(found, "lost.c", "HELD table")[0]["offset"], 40 * 8);
    held("HELD list", 20, 960, "global", Some("list"));
    assert_eq!(paths(found, "lost.c", "HELD list").len(), 1, "a list is one path");
    held("HELD mapped", 1, 13, "mapping", None);
    held("HELD inside", 1, 1400, "global", Some("inside"));
    held("HELD local", 2, 32, "thread-local", Some("lost"));
    held("HELD stack", 1, 17, "stack", Some("lost"));
    held("HELD register", 1, 18, "register", Some("r12"));
}

/// Blocks and bytes that LeakSanitizer calls lost, directly or not; nothing where it can't work. `library`: it is preloaded
/// into a program that is built without it.
///
/// # Panics
/// If it says nothing.
pub fn leak_sanitizer(case: &Case, library: bool) -> Option<(u64, u64)> {
    let case = case.clone().env("LSAN_OPTIONS", "exitcode=0");
    let case = if library { case.env("LD_PRELOAD", "liblsan.so.0") } else { case };
    let said = case.bare().err();
    if said.contains("LeakSanitizer has encountered a fatal error") {
        skipped("what LeakSanitizer finds", "it can't stop threads here");
        return None;
    }
    let Some(summary) = said.lines().find_map(|line| line.strip_prefix("SUMMARY: LeakSanitizer: ")) else {
        assert!(!said.contains("ld.so"), "{said}");
        return Some((0, 0));
    };
    let words: Vec<u64> = summary.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    Some((words[1], words[0]))
}

/// Blocks and bytes that memcheck calls definitely, indirectly and possibly lost.
///
/// # Panics
/// If it can't be started.
pub fn memcheck(case: &Case) -> [(u64, u64); 3] {
    let tool =
        ["/usr/bin/valgrind", "--leak-check=full", "--show-leak-kinds=all", "--child-silent-after-fork=yes"];
    let text = case.clone().launcher(tool).bare().err().replace(',', "");
    if text.contains("All heap blocks were freed") {
        return [(0, 0); 3];
    }
    ["definitely lost:", "indirectly lost:", "possibly lost:"].map(|name| {
        let line = text.lines().rev().find(|line| line.contains(name));
        let line = line.unwrap_or_else(|| panic!("{name}: {text}; ./test installs valgrind"));
        let words: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        (words[1], words[0])
    })
}

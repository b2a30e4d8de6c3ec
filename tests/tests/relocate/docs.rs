//! `docs/relocate.md` and the help are true.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use grapnel_tests::programs;
use grapnel_tests::run::{finish, temporary_dir};

use crate::{command, relocate};

#[test]
fn the_example_of_the_documentation() {
    let text = include_str!("../../../docs/relocate.md");
    let blocks: Vec<&str> =
        text.split("```json\n").skip(1).filter_map(|rest| rest.split("\n```").next()).collect();
    let [request, answer, refusal] = blocks[..] else { panic!("{blocks:?}") };
    assert_eq!(relocate(request).out().trim_end(), answer);
    let ret = r#"{"isa":"x86_64","from":"0x401000","to":"0x500000","bytes":"c3","min_len":5}"#;
    assert_eq!(relocate(ret).out().trim_end(), refusal);
    // The help has them too, in lines that fit a terminal.
    let help = finish(&mut command(&["--help"]), b"").out().replace("\n   \"", "\"").replace("\n   [", "[");
    assert!(help.contains(request) && help.contains(answer), "{help}");
}

/// Every name that a `kind` function of the libraries can answer, read from their sources, and every name in the table.
#[test]
fn every_kind_of_refusal_is_documented() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut kinds = BTreeSet::from(["bad-request".to_owned()]);
    for crate_dir in ["arch/src", "relocator/src"] {
        kinds_in(&root.join(crate_dir), &mut kinds);
    }
    assert!(kinds.contains("ends-early") && kinds.contains("far-transfer"), "{kinds:?}");
    let text = include_str!("../../../docs/relocate.md");
    let table = text.split("### Kinds").nth(1).expect("the page has a table of kinds");
    let documented: BTreeSet<String> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once(" |"))
        .flat_map(|(names, _)| names.trim_end_matches('`').split("`, `"))
        .map(str::to_owned)
        .collect();
    assert_eq!(documented, kinds, "docs/relocate.md has every kind, and no other");
}

fn kinds_in(dir: &Path, kinds: &mut BTreeSet<String>) {
    for entry in fs::read_dir(dir).expect("the sources are there") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            kinds_in(&path, kinds);
            continue;
        }
        let text = fs::read_to_string(&path).expect("a source is text");
        for body in text.split("fn kind(").skip(1) {
            let body = body.split("\n    }\n").next().unwrap_or_default();
            let arms = body.split("=> \"").skip(1);
            kinds.extend(arms.filter_map(|arm| Some(arm.split_once('"')?.0.to_owned())));
        }
    }
}

#[test]
fn the_man_page_and_the_completions_have_it() {
    let dir = temporary_dir();
    let outcome = finish(Command::new(programs::grapnel()).arg("man").arg(dir.path()), b"");
    assert!(outcome.status.success(), "{}", outcome.err());
    let page = fs::read_to_string(dir.path().join("grapnel-relocate.1")).expect("there is a man page");
    for option in ["explain", "isa", "from", "to", "min\\-len", "extent", "padding", "no\\-entry"] {
        assert!(page.contains(&format!("\\-\\-{option}")), "{option} in {page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = finish(Command::new(programs::grapnel()).args(["completions", shell]), b"").out();
        assert!(script.contains("relocate") && script.contains("no-entry"), "{shell}");
    }
}

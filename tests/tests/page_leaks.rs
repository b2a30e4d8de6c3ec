//! Leaks on the page: what was found, by kinds, with what holds a block.

use grapnel_tests::browser::Browser;
use grapnel_tests::run::{Case, grapnel, page, temporary_dir};
use serde_json::Value;

/// The text of what a script's expression selects.
fn text(browser: &Browser, selector: &str) -> String {
    browser.text(&format!("return document.querySelector({selector:?}).textContent"))
}

fn functions(browser: &Browser, kind: &str) -> Vec<String> {
    let rows = format!("#held-{kind} tbody tr[data-kind] .function");
    let found = browser.script(&format!(
        "return [...document.querySelectorAll({rows:?})].map(function_ => function_.textContent)"
    ));
    serde_json::from_value(found).unwrap()
}

#[test]
fn what_was_lost_and_what_holds_the_rest_is_on_the_page() {
    let (recorded, dir) = (Case::ours("lost").option("--leaks").recorded(), temporary_dir());
    let trace = recorded.trace();
    let outcome = grapnel(["leaks", "--format", "json", "--reachable", trace.to_str().unwrap()]);
    let leaks: Value = serde_json::from_slice(&outcome.stdout).unwrap();
    let browser = Browser::new(1300, 1000);
    browser.open(&page(dir.path(), &trace));
    browser.click("#tab-leaks");
    for kind in ["direct", "indirect", "reachable"] {
        let blocks = &leaks["totals"][kind]["blocks"];
        let said = text(&browser, &format!("#held-{kind} > p"));
        assert!(said.contains(&format!(" in {blocks} block")), "{kind}: {said}");
        let sites = leaks["sites"].as_array().unwrap().iter().filter(|site| site["kind"] == kind);
        let names: Vec<&str> =
            sites.map(|site| site["frames"][0]["function"].as_str().unwrap_or_default()).collect();
        let shown = functions(&browser, kind);
        assert!(
            !shown.is_empty() && names.iter().zip(&shown).all(|(name, shown)| name == shown),
            "{shown:?}"
        );
    }
    let held = text(&browser, "#held");
    assert!(
        held.starts_with("Leaks were looked for at the process's end") && !held.contains("null"),
        "{held}"
    );
    assert!(functions(&browser, "direct").iter().any(|function| function == "lose"));
    assert_eq!(browser.script("return document.querySelector('#held-possible')"), Value::Null);
    // The list hangs on a variable, and each of its blocks on the one before; a site opens to that.
    browser.press(&["/"]);
    browser.type_text("`list`");
    assert_eq!(functions(&browser, "reachable"), ["hold"]);
    assert!(
        text(&browser, "#held-direct").contains("No site is found by"),
        "{}",
        text(&browser, "#held-direct")
    );
    browser.click("#held-reachable .opener");
    let opened = text(&browser, "#held-reachable .opened");
    assert!(opened.contains("lost.c:") && opened.contains("held by `list` in lost+0x"), "{opened}");
    assert!(opened.contains("960 B in 20 blocks"), "{opened}");
    // A block that others hold has its steps.
    let indirect = leaks["sites"].as_array().unwrap().iter().find(|site| {
        site["kind"] == "indirect"
            && site["paths"][0]["steps"].as_array().is_some_and(|steps| !steps.is_empty())
    });
    assert!(indirect.is_some(), "the leaves of a lost tree");
    browser.press(&[grapnel_tests::browser::keys::ESCAPE]);
    browser
        .script("for (const opener of document.querySelectorAll('#held-indirect .opener')) opener.click()");
    let steps = browser.text(
        "return [...document.querySelectorAll('#held-indirect .path li')].map(step => step.textContent).join('\\n')",
    );
    assert!(steps.contains("a block of lose_tree at lost.c:") && steps.contains(", at +"), "{steps}");
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn a_page_without_a_look_for_leaks_says_that_reachability_is_unknown() {
    let (recorded, dir) = (Case::ours("lost").recorded(), temporary_dir());
    let browser = Browser::new(1300, 1000);
    browser.open(&page(dir.path(), &recorded.trace()));
    browser.click("#tab-leaks");
    assert_eq!(browser.script("return document.getElementById('held').hidden"), true);
    assert!(text(&browser, "#panel-leaks").contains("could still reach them is not known"));
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn the_report_as_text_has_the_leaks_too() {
    let recorded = Case::ours("lost").option("--leaks").recorded();
    let report = grapnel([std::ffi::OsStr::new("report"), recorded.trace().as_ref()]).out();
    for expected in
        ["Leaks, at the process's end\n", "Directly lost\n", "Indirectly lost\n", "held by lost blocks\n"]
    {
        assert!(report.contains(expected), "{expected}: {report}");
    }
    assert!(!report.contains("Still reachable\n"), "{report}");
    let plain = Case::ours("lost").recorded();
    let report = grapnel([std::ffi::OsStr::new("report"), plain.trace().as_ref()]).out();
    assert!(!report.contains("Directly lost"), "{report}");
}

//! The page that `grapnel report --html` writes, opened in Chromium and used by mouse and keyboard.

use grapnel_tests::browser::{Browser, keys};
use grapnel_tests::programs;
use grapnel_tests::report::Report;
use grapnel_tests::run::{Case, Recorded, grapnel, page, temporary_dir};
use serde_json::json;
use std::path::Path;

/// Two lists, one after the other: the first is larger, and is gone when the second is made. The time between is slept, so
/// that the second is in the same part of it on a slow machine too, and the end leaves nothing of either.
const PHASES: &str = "
from time import sleep
def first():
    return [bytes(3000 + n % 7) for n in range(4000)]
def second():
    return [bytes(1500 + n % 7) for n in range(4000)]
def idle():
    return [sleep(0.05) or str(n) for n in range(20)]
rows = first(); idle(); del rows; idle(); rows = second(); idle(); del rows; idle()
";

fn phases() -> Recorded {
    Case::new("/usr/bin/python3").args(["-c", PHASES]).env("PYTHONMALLOC", "malloc").recorded()
}

fn leaks() -> Recorded {
    Case::ours("leaks").arg(programs::library("leak_library")).recorded()
}

/// The value of a fact in the page's head, to the byte.
fn fact(browser: &Browser, name: &str) -> u64 {
    let text = browser.text(&format!(
        "const fact = [...document.querySelectorAll('.fact')].find(fact => fact.querySelector('dt').textContent === {name:?});
         return fact.title.replaceAll(',', '') || fact.querySelector('dd').textContent.replaceAll(',', '')"
    ));
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{name}: {text}"))
}

#[test]
fn figures_are_those_of_the_report() {
    let (recorded, dir) = (leaks(), temporary_dir());
    let report: Report = recorded.report();
    let browser = Browser::new(1300, 1000);
    browser.open(&page(dir.path(), &recorded.trace()));
    let totals = &report.totals;
    for (name, expected) in [
        ("Peak", totals.peak_bytes),
        ("Live at end", totals.live_bytes),
        ("Allocated", totals.allocated_bytes),
        ("Allocations", totals.allocations),
        ("Sites", report.sites.len() as u64),
    ] {
        assert_eq!(fact(&browser, name), expected, "{name}");
    }
    // Each leak is a row, the largest first, and opens to its stack.
    browser.click("#tab-leaks");
    let leaked = report.sites.iter().filter(|site| site.live_bytes > 0);
    let mut expected: Vec<(u64, u64)> = leaked.map(|site| (site.live_allocations, site.live_bytes)).collect();
    expected.sort_by_key(|&(_, bytes)| std::cmp::Reverse(bytes));
    let blocks = browser.script(
        "return [...document.querySelectorAll('#leaks tbody tr')].map(row => Number(row.cells[2].textContent.replaceAll(',', '')))",
    );
    let found: Vec<u64> = serde_json::from_value(blocks).unwrap();
    assert_eq!(found.iter().sum::<u64>(), expected.iter().map(|(blocks, _)| blocks).sum::<u64>());
    assert_eq!(found[0], expected[0].0);
    browser.click("#leaks .opener");
    let stack = browser.text("return document.querySelector('#leaks .stack').textContent");
    assert!(stack.contains("leaks.c:") && stack.contains("main"), "{stack}");
    assert_eq!(browser.text("return document.querySelector('#leaks .opener').ariaExpanded"), "true");
    // All boxes of the lowest row together are the whole, and so are the sizes.
    browser.click("#tab-sizes");
    let blocks = browser.script(
        "return [...document.querySelectorAll('#sizes tbody tr')].reduce((sum, row) => sum + (Number(row.cells[1].textContent.replaceAll(',', '')) || 0), 0)",
    );
    assert_eq!(blocks, totals.allocations + totals.reallocations);
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// The functions that are drawn, with what they are said to have.
fn boxes(browser: &Browser) -> Vec<String> {
    let labels = browser.script("return [...document.querySelectorAll('.box')].map(box => box.ariaLabel)");
    serde_json::from_value(labels).unwrap()
}

#[test]
fn everything_follows_the_range() {
    let (recorded, dir) = (phases(), temporary_dir());
    let browser = Browser::new(1300, 1000);
    browser.open(&page(dir.path(), &recorded.trace()));
    let root = || boxes(&browser).into_iter().find(|label| label.starts_with("all, ")).unwrap_or_default();
    let figures = || browser.text("return document.querySelector('#range-figures').textContent");
    let whole = (root(), figures());
    assert!(whole.0.contains("MiB, 100.0%"), "{whole:?}");
    let mib = |text: &str| text.split(' ').nth(1).and_then(|number| number.parse::<f64>().ok());
    assert!(mib(&whole.0) > Some(11.0), "{whole:?}");
    // The second list begins in the middle, when the first has long been gone.
    browser.drag("#timeline", (0.95, 0.4), (0.45, 0.4));
    let range = browser.text("return document.querySelector('#range-text').textContent");
    assert!(range.contains(" to "), "{range}");
    let part = (root(), figures());
    assert!(mib(&part.0) < mib(&whole.0), "{part:?} of {whole:?}");
    assert!(mib(&part.0) > Some(5.0), "{part:?} of {whole:?}");
    assert_ne!(part.1, whole.1);
    // Its end can be dragged.
    browser.drag("#handle-to", (0.5, 0.5), (-12.0, 0.5));
    assert_ne!(browser.text("return document.querySelector('#range-text').textContent"), range);
    // What was allocated in it is less, too, and the table says the same as the graph.
    browser.click("input[value=allocated]");
    let allocated = root();
    browser.click("#tab-sites");
    browser.click("#sites-by-allocated");
    assert!(!allocated.is_empty());
    let row = browser.text("return document.querySelector('#sites tbody td:nth-child(5)').textContent");
    assert!(row.ends_with("MiB"), "{row}");
    browser.press(&["/"]);
    browser.type_text("no such function");
    let empty = browser.text("return document.querySelector('#sites-empty').innerText");
    assert_eq!(empty, "No site is found by “no such function”.");
    browser.press(&[keys::ESCAPE]);
    // By keyboard, an end of the range goes a step and back.
    browser.script("document.querySelector('#handle-from').focus()");
    let edge =
        || browser.script("return Number(document.querySelector('#handle-from').ariaValueNow)").as_f64();
    let before = edge();
    browser.press(&[keys::RIGHT]);
    assert_eq!(edge(), before.map(|edge| edge + 1.0));
    browser.press(&[keys::LEFT]);
    assert_eq!(edge(), before);
    browser.press(&[keys::HOME]);
    assert_eq!(edge(), Some(0.0));
    browser.click("#range-all");
    browser.click("#tab-flame");
    browser.click("input[value=peak]");
    assert_eq!((root(), figures()), whole);
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn graphs_are_walked_zoomed_and_searched() {
    let (recorded, dir) = (leaks(), temporary_dir());
    let browser = Browser::new(1300, 1000);
    browser.open(&page(dir.path(), &recorded.trace()));
    let crumbs = || {
        browser.text("const nav = document.querySelector('#crumb-nav'); return nav.hidden ? '' : nav.innerText.replaceAll('\\n', ' ')")
    };
    let focused = || browser.text("return document.activeElement.ariaLabel || ''");
    let is_upright = || {
        browser.script(
            "const top = text => [...document.querySelectorAll('.box')].find(box => box.ariaLabel.startsWith(text)).getBoundingClientRect().top;
             return top('all,') > top('_start')",
        )
    };
    assert_eq!(is_upright(), true);
    browser.press(&["2"]);
    assert_eq!(is_upright(), false);
    browser.press(&["1"]);
    // From the root to a function that it called, and into it.
    browser.script("document.querySelector('.box[tabindex=\"0\"]').focus()");
    assert!(focused().starts_with("all, "), "{}", focused());
    browser.press(&[keys::UP]);
    assert!(focused().starts_with("_start, "), "{}", focused());
    browser.press(&[keys::UP, keys::UP, keys::UP, keys::ENTER]);
    assert!(crumbs().ends_with("main"), "{}", crumbs());
    assert!(focused().starts_with("main, "), "{}", focused());
    let width = browser.script(
        "const box = document.activeElement.getBoundingClientRect(); return box.width / document.querySelector('#boxes').clientWidth",
    );
    assert!(width.as_f64() > Some(0.98), "{width}");
    browser.press(&[keys::BACKSPACE]);
    assert!(crumbs().ends_with("__libc_start_main_impl") || crumbs().ends_with("_call_main"), "{}", crumbs());
    browser.press(&[keys::ESCAPE]);
    assert_eq!(crumbs(), "");
    browser.press(&["/"]);
    browser.type_text("copied");
    let found =
        browser.script("return [...document.querySelectorAll('.box.found')].map(box => box.textContent)");
    assert!(found.as_array().is_some_and(|found| !found.is_empty()), "{found}");
    let note = browser.text("return document.querySelector('#flame-note').textContent");
    assert!(note.starts_with("found in ") && note.ends_with('%'), "{note}");
    browser.press(&[keys::ESCAPE]);
    assert_eq!(browser.script("return document.querySelectorAll('.box.found').length"), 0);
    // Bottom-up, who allocated comes first, and main is one of their callers.
    browser.click("#tab-bottom");
    let labels = boxes(&browser);
    assert!(
        !labels[1].starts_with("_start") && labels.iter().any(|label| label.starts_with("main, ")),
        "{labels:?}"
    );
    assert_eq!(browser.console(), Vec::<String>::new());
}

/// What a figure of the page is in MiB.
fn mebibytes(text: &str) -> f64 {
    let (value, unit) = text.split_once(' ').unwrap_or_else(|| panic!("{text}"));
    let value: f64 = value.replace('−', "-").parse().unwrap_or_else(|_| panic!("{text}"));
    value
        * match unit {
            "B" => 1.0 / 1_048_576.0,
            "KiB" => 1.0 / 1024.0,
            _ => 1.0,
        }
}

#[test]
fn memory_of_other_kinds_has_a_view_of_its_own() {
    let (mapped, dir) = (Case::ours("mappings").recorded(), temporary_dir());
    let pools = Case::ours("pools").arg(programs::cxx_library("pool_library")).recorded();
    let browser = Browser::new(1300, 1000);
    let text = "return document.getElementById('others').textContent";
    for (recorded, title) in [(&mapped, "Mappings"), (&pools, "Pool nodes")] {
        browser.open(&page(dir.path(), &recorded.trace()));
        browser.press(&["7"]);
        assert_eq!(browser.text("return document.querySelector('[aria-selected=true]').id"), "tab-others");
        assert!(browser.text(text).contains(title), "{}", browser.text(text));
        assert_eq!(browser.script("return document.querySelectorAll('#others .stack').length"), 0);
        browser.click("#others .opener");
        assert_ne!(browser.script("return document.querySelectorAll('#others .stack li').length"), 0);
        assert_eq!(browser.console(), Vec::<String>::new());
    }
    let nodes =
        pools.report().heaps.iter().find(|heap| heap.name == "nodes").map(|heap| heap.totals.allocations);
    let allocations = nodes.expect("the program has such a pool") + 10;
    let said = browser.text(text);
    assert!(said.contains(&format!(" in {allocations} allocations")), "{said}");
    browser.open(&page(dir.path(), &leaks().trace()));
    assert_eq!(browser.script("return document.getElementById('tab-others').hidden"), true);
}

#[test]
fn two_recordings_are_compared() {
    let script = |count: u32| format!("rows = [bytes(1000) for n in range({count})]");
    let record = |count| {
        Case::new("/usr/bin/python3").args(["-c", &script(count)]).env("PYTHONMALLOC", "malloc").recorded()
    };
    let (before, now, dir) = (record(2000), record(6000), temporary_dir());
    let page = dir.path().join("compared.html");
    let (before_trace, now_trace) = (before.trace(), now.trace());
    let outcome = grapnel([
        "report".as_ref(),
        "--html".as_ref(),
        page.as_os_str(),
        "--before".as_ref(),
        before_trace.as_os_str(),
        now_trace.as_os_str(),
    ]);
    assert!(outcome.status.success(), "{}", outcome.err());
    let browser = Browser::new(1300, 1000);
    browser.open(&page);
    browser.click("#tab-compared");
    let all = boxes(&browser);
    let grown = now.report().totals.peak_bytes - before.report().totals.peak_bytes;
    assert!(grown > 3_500_000, "{grown}");
    let said = format!("+{:.1} MiB (+", grown as f64 / 1048576.0);
    assert!(all[0].starts_with("all, ") && all[0].contains(&said), "{} has no {said}", all[0]);
    // What grew is red, and what is the same is grey.
    let colours = browser
        .script("return [...document.querySelectorAll('.box')].map(box => /d[0-6]/.exec(box.className)[0])");
    let colours: Vec<String> = serde_json::from_value(colours).unwrap();
    assert!(*colours[0] >= *"d5", "{colours:?}");
    assert!(colours.iter().any(|colour| colour == "d3"), "{colours:?}");
    browser.click("#range-before");
    browser.press(&["/"]);
    browser.type_text("start");
    assert_ne!(browser.script("return document.querySelectorAll('.box.found').length"), 0);
    // The same as a table: the change is the difference of its columns, and what changed most comes first.
    browser.click("#range-all");
    browser.click("#tab-changes");
    browser.press(&["/"]);
    browser.press(&[keys::ESCAPE]);
    let cells = "return [...document.querySelectorAll('#changes tbody tr')].map(
        row => [...row.querySelectorAll('td.number')].map(cell => cell.textContent))";
    let rows: Vec<[String; 3]> = serde_json::from_value(browser.script(cells)).unwrap();
    let [change, with, without] = rows[0].each_ref().map(|text| mebibytes(text));
    assert!(change > 3.4 && (with - without - change).abs() < 0.2, "{:?}", rows[0]);
    assert!(
        rows.windows(2).all(|two| mebibytes(&two[0][0]).abs() >= mebibytes(&two[1][0]).abs()),
        "{rows:?}"
    );
    browser.click("#changes .opener");
    assert_ne!(browser.script("return document.querySelectorAll('#changes .stack li').length"), 0);
    let fact = browser.text("return document.querySelector('.fact .was').textContent");
    assert!(fact.starts_with("before ") && fact.contains("MiB, +"), "{fact}");
    assert_eq!(browser.console(), Vec::<String>::new());
    let alone = grapnel(["report", "--before", "x.grapnel", "t.grapnel"]);
    assert_eq!(alone.status.code(), Some(2));
}

#[test]
fn it_fits_any_window_in_the_colours_that_are_preferred() {
    let (recorded, dir) = (phases(), temporary_dir());
    let browser = Browser::new(1300, 1000);
    browser.open(&page(dir.path(), &recorded.trace()));
    let ground = || browser.text("return getComputedStyle(document.body).backgroundColor");
    browser.prefer("light");
    let light = ground();
    browser.prefer("dark");
    let dark = ground();
    assert_ne!(light, dark);
    // The switch is stronger than the system.
    browser.click("#theme");
    assert_eq!(ground(), light);
    browser.prefer("light");
    browser.click("#theme");
    assert_eq!(ground(), dark);
    browser.click("#theme");
    assert_eq!(ground(), light);
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        for (width, height) in [(1920, 1080), (1280, 800), (800, 1000), (390, 844)] {
            browser.resize(width, height);
            for view in ["flame", "icicle", "bottom", "sites", "leaks", "sizes", "others"] {
                browser.click(&format!("#tab-{view}"));
                let over = browser.script("return document.documentElement.scrollWidth - innerWidth");
                assert!(over.as_i64() <= Some(0), "{view} at {width}: {over}");
                if width == 1280 || view == "flame" {
                    let image = browser.screenshot(&format!("{view}-{width}-{scheme}"));
                    assert!(image.len() > 10_000, "{view} at {width}: {} bytes", image.len());
                }
            }
        }
    }
    // Whatever can be used has a name for those who don't see it.
    let tree = browser.devtools("Accessibility.getFullAXTree", &json!({}));
    let nodes = tree["nodes"].as_array().unwrap();
    let role = |name: &str| {
        let of_role = nodes.iter().filter(|node| node["ignored"] != true && node["role"]["value"] == name);
        of_role.map(|node| node["name"]["value"].as_str().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    for name in ["button", "tab", "slider", "columnheader", "tabpanel"] {
        let names = role(name);
        assert!(!names.is_empty() && names.iter().all(|name| !name.is_empty()), "{name}: {names:?}");
    }
    assert_eq!(role("tab").len(), 7);
    assert_eq!(role("slider"), ["Beginning of the range", "End of the range"]);
}

#[test]
fn names_stay_text_and_nothing_is_fetched() {
    const EVIL: &str = "<img src=x onerror=document.title='taken'>";
    let dir = temporary_dir();
    let program = dir.path().join(EVIL);
    std::fs::copy(programs::program("leaks"), &program).unwrap();
    let recorded = Case::new(&program)
        .arg(programs::library("leak_library"))
        .arg("</script><script>document.title = 'taken'</script>")
        .recorded();
    let browser = Browser::new(1300, 1000);
    let page = page(dir.path(), &recorded.trace());
    browser.open(&page);
    for view in ["flame", "icicle", "bottom", "sites", "leaks", "sizes"] {
        browser.click(&format!("#tab-{view}"));
        if let "sites" | "leaks" = view {
            browser.click(&format!("#{view} .opener"));
        }
    }
    assert_eq!(browser.text("return document.title"), format!("{EVIL} · Grapnel"));
    assert_eq!(browser.script("return document.querySelectorAll('img, script:not([class])').length"), 1);
    let command = browser.text("return document.querySelector('#command').textContent");
    assert!(command.contains("</script><script>") && command.contains("<img src=x"), "{command}");
    assert_eq!(browser.script("return performance.getEntriesByType('resource').length"), 0);
    assert_eq!(browser.console(), Vec::<String>::new());
    // The policy forbids what the page doesn't do anyway.
    let refused =
        browser.script("return fetch('http://127.0.0.1:9/').then(() => 'fetched', error => error.name)");
    assert_eq!(refused, "TypeError");
    browser.script("document.body.append(Object.assign(document.createElement('script'), {textContent: 'document.title = \"taken\"'}))");
    assert_ne!(browser.text("return document.title"), "taken");
    let said = browser.console().join("\n");
    assert!(said.contains("connect-src") || said.contains("default-src"), "{said}");
    assert!(said.contains("script-src"), "{said}");
}

#[test]
fn long_names_are_short_where_there_is_little_room() {
    let (recorded, dir) = (Case::ours("cxx").recorded(), temporary_dir());
    let browser = Browser::new(1300, 1000);
    browser.open(&page(dir.path(), &recorded.trace()));
    browser.click("#tab-sites");
    let names = browser.script(
        "return [...document.querySelectorAll('#sites .function')].map(name => [name.title, name.textContent])",
    );
    let names: Vec<[String; 2]> = serde_json::from_value(names).unwrap();
    let long: Vec<_> = names.iter().filter(|[whole, _]| whole.len() > 60).collect();
    assert!(!long.is_empty() && long.len() < names.len(), "{names:?}");
    assert!(
        long.iter().all(|[whole, short]| short.len() < whole.len() && !short.contains("char_traits")),
        "{long:?}"
    );
    assert!(names.iter().all(|[whole, short]| whole.len() > 60 || whole == short), "{names:?}");
    assert!(names.iter().all(|[whole, _]| !whole.contains(", >") && !whole.contains("(&&)")), "{names:?}");
    // Where a line goes with the name, it leaves room for it.
    browser.resize(390, 844);
    let hidden = browser.script(
        "return [...document.querySelectorAll('#sites .function')]
            .filter(name => name.clientWidth < Math.min(40, name.scrollWidth)).map(name => name.title)",
    );
    assert_eq!(hidden, json!([]));
    let short = |name: &str| {
        // It is in the scope of the page's script, of which this is all it needs.
        let script = include_str!("../../profiler/analysis/src/page/assets/names.js");
        browser.text(&format!("{script}; return shortName({name:?}, 20)"))
    };
    for (name, expected) in [
        (
            "(anonymous namespace)::f<int>::operator()(int) const",
            "(anonymous namespace)::f<…>::operator()(…) const",
        ),
        ("a<b<c> >::operator<<(std::ostream&, int)", "a<…>::operator<<(…)"),
        ("<core::iter::Map<A, B> as Iterator>::next", "<…>::next"),
        ("a_name_that_is_longer_than_that(", "a_name_that_is_longer_than_that("),
    ] {
        assert_eq!(short(name), expected);
    }
    assert_eq!(browser.console(), Vec::<String>::new());
}

#[test]
fn a_browser_that_cannot_decompress_shows_the_same() {
    let (recorded, dir) = (phases(), temporary_dir());
    let page = page(dir.path(), &recorded.trace());
    let browser = Browser::new(1300, 1000);
    browser.open(&page);
    let all = "return document.querySelector('#facts').textContent + [...document.querySelectorAll('.box')].map(box => box.ariaLabel).join()";
    let expected = browser.text(all);
    browser.devtools(
        "Page.addScriptToEvaluateOnNewDocument",
        &json!({"source": "delete globalThis.DecompressionStream"}),
    );
    browser.open(&page);
    assert_eq!(browser.text("return typeof DecompressionStream"), "undefined");
    assert_eq!(browser.text(all), expected);
}

#[test]
fn a_page_is_written_whole_or_not_at_all() {
    let (recorded, dir) = (leaks(), temporary_dir());
    let trace = recorded.trace();
    let run =
        |html: &Path| grapnel(["report".as_ref(), "--html".as_ref(), html.as_os_str(), trace.as_os_str()]);
    let outcome = run(&trace);
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.err().contains("is the trace itself"), "{}", outcome.err());
    let outcome = run(&dir.path().join("missing/report.html"));
    assert_eq!(outcome.status.code(), Some(1));
    assert!(outcome.err().contains("missing/report.html: "), "{}", outcome.err());
    let full = run(Path::new("/dev/full"));
    assert_eq!(full.status.code(), Some(1));
    assert!(full.err().contains("No space left"), "{}", full.err());
    let both = grapnel(["report", "--html", "x.html", "--format", "json", "t"]);
    assert_eq!(both.status.code(), Some(2));
}

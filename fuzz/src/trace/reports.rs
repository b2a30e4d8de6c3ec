//! What `grapnel` itself says of a trace.

use grapnel_analysis::{
    Analysis,
    diff::{self, Diff, Normalize},
    export::Measure,
    gates::{self, Gate, junit, sarif},
    history::{Window, analyse_over_time},
    leaks::{self, Kind},
    page,
    query::{self, By, Query, gather},
    report::{json, text},
    suppressions::{Pattern, Suppressions},
    symbols::{FileStore, Symbols},
};
use grapnel_trace::reader::Reader;

use super::{is_json, is_sentence, is_text, nowhere, with_symbols};

pub(super) fn all(analysis: &Analysis, trace: &[u8]) {
    report(analysis);
    look_for_leaks(analysis);
    ask(trace);
    show(trace);
    judge(analysis);
    compare(analysis);
}

fn report(analysis: &Analysis) {
    let mut out = Vec::new();
    with_symbols(|symbols| json::write(&mut out, analysis, symbols, 0)).expect("memory");
    is_json(&out);
    out.clear();
    let options = text::TextOptions::default();
    with_symbols(|symbols| text::write(&mut out, analysis, symbols, &options)).expect("memory");
    is_text(&out);
}

fn look_for_leaks(analysis: &Analysis) {
    let Some(found) = &analysis.leaks else { return };
    let mut out = Vec::new();
    with_symbols(|symbols| leaks::json::write(&mut out, analysis, found, symbols, &Kind::ALL, 0))
        .expect("memory");
    is_json(&out);
    out.clear();
    let options = text::TextOptions::default();
    with_symbols(|symbols| leaks::text::write(&mut out, analysis, found, symbols, &options, &Kind::ALL))
        .expect("memory");
    is_text(&out);
}

/// Groups that share no block add up to the whole.
fn ask(trace: &[u8]) {
    let apart = [By::All, By::Thread, By::Size, By::Lifetime, By::Time, By::Source, By::Pattern];
    for by in apart.into_iter().chain([By::Function, By::File, By::Module]) {
        for window in [0..=u64::MAX, 1_000..=100_000_000] {
            let query = Query { by, window, ..Query::default() };
            let reader = Reader::new(trace).expect("it was read before");
            let Ok((analysis, gathered)) = gather(reader, &query) else { return };
            let answer = with_symbols(|symbols| gathered.answer(&analysis, symbols));
            let sum = answer.rows.iter().fold(0_u64, |sum, row| sum.saturating_add(row.figures.allocations));
            assert!(!apart.contains(&by) || sum == answer.whole.allocations, "{by:?}");
            let mut out = Vec::new();
            query::json::write(&mut out, &answer, &query, 0).expect("memory");
            is_json(&out);
            out.clear();
            query::text::write(&mut out, &answer, &query, 0).expect("memory");
            is_text(&out);
        }
    }
}

/// The data of a page is all that of it that depends on the trace.
fn show(trace: &[u8]) {
    for window in [Window::ALL, Window { from: 10, to: 40 }] {
        let reader = Reader::new(trace).expect("it was read before");
        let (analysis, history) = analyse_over_time(reader, window);
        let limits = page::Limits::FILE;
        with_symbols(|symbols| page::data(&analysis, &history, symbols, limits)).expect("memory");
    }
}

fn judge(analysis: &Analysis) {
    let mut known = Suppressions::parse("leak:a*\nleak:*lib*").expect("good lines");
    let function = Pattern::whole("*a*");
    let gates = [Gate::Leaks, Gate::MaxPeak(1), Gate::MaxAllocationsAt { function, most: 0 }];
    let verdicts = match with_symbols(|symbols| gates::judge(analysis, symbols, &gates, &mut known)) {
        Ok(verdicts) => verdicts,
        Err(unjudged) => return assert!(!unjudged.to_string().is_empty()),
    };
    verdicts.iter().for_each(|verdict| is_sentence(&verdict.message));
    let mut out = Vec::new();
    with_symbols(|symbols| sarif::write(&mut out, analysis, symbols, &verdicts)).expect("memory");
    is_json(&out);
    out.clear();
    with_symbols(|symbols| junit::write(&mut out, analysis, symbols, &verdicts)).expect("memory");
    is_text(&out);
}

/// Beside itself, a trace has not changed.
fn compare(analysis: &Analysis) {
    let store = FileStore::new();
    let [mut before, mut after] = [(); 2].map(|()| Symbols::new(&store, nowhere()));
    let diff = Diff::new((analysis, &mut before), (analysis, &mut after), Normalize::Not);
    for measure in Measure::ALL {
        assert!(diff.changed(measure).is_empty(), "{measure:?}");
    }
    let mut out = Vec::new();
    diff::json::write(&mut out, &diff, [&mut before, &mut after], Measure::Peak, 0).expect("memory");
    is_json(&out);
    out.clear();
    let options = text::TextOptions::default();
    diff::text::write(&mut out, &diff, [&mut before, &mut after], Measure::Live, &options).expect("memory");
    is_text(&out);
}

//! Verdicts as SARIF 2.1.0, which code hosts show beside the lines.

use super::{Blame, Blamed, Gate, Verdict};
use crate::Analysis;
use crate::export::stack::frames;
use crate::report::words::harmless;
use crate::symbols::Symbols;
use serde_json::{Value, json};
use std::io::{self, Write};

/// Results of a condition that isn't met: code hosts take some thousands in all.
const SITES: usize = 500;

/// Writes one run with a result for each site that is to blame, at the innermost line that is known.
///
/// # Errors
/// What writing gives.
pub fn write(
    mut out: impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    verdicts: &[Verdict],
) -> io::Result<()> {
    let mut results = Vec::new();
    for verdict in verdicts.iter().filter(|verdict| !verdict.is_met) {
        if verdict.sites.is_empty() {
            results.push(json!({
                "ruleId": rule(&verdict.gate), "level": "error", "message": { "text": verdict.message },
            }));
        }
        for blamed in verdict.sites.iter().take(SITES) {
            results.push(result(analysis, symbols, verdict, blamed));
        }
    }
    let doubts: Vec<Value> = verdicts
        .iter()
        .filter_map(|verdict| {
            let (text, rule) = (verdict.doubt.as_ref()?, rule(&verdict.gate));
            Some(json!({
                "level": "warning", "message": { "text": text }, "associatedRule": { "id": rule },
            }))
        })
        .collect();
    let rules = [
        ("leaks", "Blocks are lost at the end, or live where it is not known what is lost"),
        ("max-peak", "The peak is too high"),
        ("max-allocations-at", "A function allocates too often"),
    ];
    let rules = rules.map(|(id, text)| json!({ "id": id, "shortDescription": { "text": text } }));
    let log = json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "grapnel", "version": env!("CARGO_PKG_VERSION"), "rules": rules } },
            "invocations": [{ "executionSuccessful": true, "toolConfigurationNotifications": doubts }],
            "results": results,
        }],
    });
    serde_json::to_writer(&mut out, &log)?;
    out.write_all(b"\n")?;
    out.flush()
}

fn rule(gate: &Gate) -> &'static str {
    match gate {
        Gate::Leaks => "leaks",
        Gate::MaxPeak(_) => "max-peak",
        Gate::MaxAllocationsAt { .. } => "max-allocations-at",
    }
}

fn result(analysis: &Analysis, symbols: &mut Symbols<'_>, verdict: &Verdict, blamed: &Blamed) -> Value {
    let site = &analysis.sites[blamed.site];
    let text = match blamed.of {
        Blame::Live(_) | Blame::Lost { .. } => blamed.of.to_string(),
        Blame::Peak(_) | Blame::Allocations(_) => format!("{} here; {}", blamed.of, verdict.message),
    };
    let (mut stack, mut first) = (Vec::new(), None);
    frames(analysis, symbols, site.stack, |_, frame| {
        let mut location = json!({ "message": { "text": frame.name } });
        if let (Some(file), Some(line)) = (frame.file, frame.line.filter(|&line| line > 0)) {
            let physical = json!({
                "artifactLocation": { "uri": uri(file) }, "region": { "startLine": line },
            });
            first.get_or_insert_with(|| physical.clone());
            location["physicalLocation"] = physical;
        }
        stack.push(json!({ "location": location }));
    });
    let locations: Vec<Value> = first.map(|place| json!({ "physicalLocation": place })).into_iter().collect();
    json!({
        "ruleId": rule(&verdict.gate),
        "level": "error",
        "message": { "text": text },
        "locations": locations,
        "stacks": [{ "frames": stack }],
    })
}

/// A path as a URI: what is no plain character of one is escaped.
fn uri(path: &str) -> String {
    let mut out = if path.starts_with('/') { "file://".to_owned() } else { String::new() };
    for byte in harmless(path).bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' | b'+' => {
                out.push(byte.into())
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #[test]
    fn paths_are_uris() {
        assert_eq!(super::uri("/src/a b/x.c"), "file:///src/a%20b/x.c");
        assert_eq!(super::uri("src/x.cc"), "src/x.cc");
    }
}

//! What each engine takes.

use super::labels::Labels;
use super::target::Engine;
use data_encoding::BASE64;
use flate2::Compression;
use flate2::write::GzEncoder;
use grapnel_analysis::export::pushed::{Pushed, Resource};
use grapnel_analysis::symbols::Symbols;
use serde::Serialize;
use std::io::Write;

/// A request's body and what it is.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    pub(super) kind: &'static str,
    /// Compressed by gzip as a whole.
    pub(super) compressed: bool,
}

/// The request of Pyroscope's `push.v1.PusherService/Push`, and of Parca's `WriteRaw`, which has labels one level deeper.
#[derive(Serialize)]
struct Push<L> {
    series: [Series<L>; 1],
}

#[derive(Serialize)]
struct Series<L> {
    labels: L,
    samples: [Sample; 1],
}

#[derive(Serialize)]
struct LabelSet {
    labels: Vec<Label>,
}

#[derive(Serialize)]
struct Label {
    name: String,
    value: String,
}

#[derive(Serialize)]
struct Sample {
    #[serde(rename = "ID", skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "rawProfile")]
    raw_profile: String,
}

/// A profile as the engine takes it.
pub(super) fn of(
    engine: Engine,
    pushed: &Pushed<'_>,
    symbols: &mut Symbols<'_>,
    labels: &Labels,
    (pid, command): (u32, &str),
) -> Body {
    let labels = labels.of(engine, pid, command);
    let id = fastrand::u128(1..);
    if engine == Engine::Otlp {
        let request = pushed.otlp(symbols, &Resource { attributes: labels, pid, id });
        return Body { bytes: compressed(&request), kind: "application/x-protobuf", compressed: true };
    }
    let labels: Vec<Label> = labels.into_iter().map(|(name, value)| Label { name, value }).collect();
    let raw_profile = BASE64.encode(&pushed.pprof(symbols));
    let bytes = match engine {
        Engine::Pyroscope => json(labels, Sample { id: Some(uuid(id)), raw_profile }),
        _ => json(LabelSet { labels }, Sample { id: None, raw_profile }),
    };
    Body { bytes, kind: "application/json", compressed: false }
}

fn json<L: Serialize>(labels: L, sample: Sample) -> Vec<u8> {
    // Of strings only, JSON can always be made.
    serde_json::to_vec(&Push { series: [Series { labels, samples: [sample] }] }).unwrap_or_default()
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    // Writing into memory never fails.
    let _ = out.write_all(bytes);
    out.finish().unwrap_or_default()
}

/// A random number as a UUID of version 4 (RFC 9562).
fn uuid(random: u128) -> String {
    let number = random & !(0xf << 76) & !(0x3 << 62) | 0x4 << 76 | 0x2 << 62;
    let hex = format!("{number:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_has_its_version_and_its_variant() {
        assert_eq!(uuid(u128::MAX), "ffffffff-ffff-4fff-bfff-ffffffffffff");
        assert_eq!(uuid(0x1), "00000000-0000-4000-8000-000000000001");
    }
}

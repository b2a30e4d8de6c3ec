//! Programs whose profiles are pushed, and readers of what came.

use grapnel_tests::engine::{Answer, Engine, Request};
use grapnel_tests::going::until;
use grapnel_tests::programs::target_dir;
use grapnel_tests::report::Report;
use grapnel_tests::run::{Case, finish, temporary_dir};
use serde_json::Value;
use std::process::Command;

/// Keeps 1000 blocks of 54,321 bytes, and allocates one more of a megabyte for each line that it reads.
const SCRIPT: &str = "
import ctypes, sys
libc = ctypes.CDLL(None)
kept = [libc.malloc(54321) for n in range(1000)]
for line in sys.stdin: kept.append(libc.malloc(1 << 20))
";

/// What the script keeps of itself.
const KEPT: i64 = 54_321_000;

/// The script, pushed to an engine each second.
pub(crate) fn script(kind: &str, engine: &Engine) -> Case {
    pushed(Case::new("/usr/bin/python3").args(["-c", SCRIPT]), kind, engine)
        .option("--push-every")
        .option("1")
}

/// A program, pushed to an engine.
pub(crate) fn pushed(case: Case, kind: &str, engine: &Engine) -> Case {
    case.option("--push").option(&format!("{kind}+http://{}", engine.address))
}

/// Waits until a profile has the script's blocks, of which `live` tells the bytes.
pub(crate) fn wait(engine: &Engine, live: impl Fn(&Request) -> i64) {
    until("its blocks", || (live(engine.requests().last()?) >= KEPT).then_some(()));
}

pub(crate) fn taken() -> Answer {
    Answer::Say("200 OK", "Content-Type: application/json\r\n".into(), b"{}".to_vec())
}

/// A profile as `go tool pprof` reads it.
#[derive(Debug)]
pub(crate) struct Profile {
    /// All that it says.
    pub(crate) text: String,
    /// Blocks and bytes allocated, blocks and bytes live.
    pub(crate) sums: [i64; 4],
    /// How many samples there are.
    pub(crate) samples: usize,
}

impl Profile {
    /// What stands behind a word at the start of a line.
    pub(crate) fn said(&self, word: &str) -> Option<&str> {
        self.text.lines().find_map(|line| line.strip_prefix(word))
    }

    /// The time in seconds since 1970.
    pub(crate) fn time(&self) -> f64 {
        let time = self.said("Time: ").unwrap();
        let words: Vec<&str> = time.split(' ').take(3).collect();
        let date = finish(Command::new("date").args(["-d", &words.join(" "), "+%s.%N"]), b"");
        date.out().trim().parse().unwrap_or_else(|_| panic!("{time}: {}", date.err()))
    }
}

/// Reads a profile of pprof.
pub(crate) fn pprof(bytes: &[u8]) -> Profile {
    let home = temporary_dir();
    let file = home.path().join("profile.pb.gz");
    std::fs::write(&file, bytes).unwrap();
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-raw"]).arg(&file).env("HOME", home.path()).env("TZ", "UTC");
    let outcome = finish(command.env("PPROF_TMPDIR", home.path()).env("GOTOOLCHAIN", "local"), b"");
    assert!(outcome.status.success(), "{}", outcome.err());
    let text = outcome.out();
    let types = "alloc_objects/count alloc_space/bytes inuse_objects/count inuse_space/bytes[dflt]";
    let samples = text.split_once(&format!("Samples:\n{types}\n")).unwrap_or_else(|| panic!("{text}")).1;
    let samples = samples.split_once("Locations\n").unwrap().0;
    let mut all = Profile { sums: [0; 4], samples: 0, text: text.clone() };
    for line in samples.lines() {
        let values = line.split_once(':').unwrap().0.split_ascii_whitespace();
        let values: Vec<i64> = values.map(|value| value.parse().unwrap()).collect();
        assert_eq!(values.len(), 4, "{line}");
        all.sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        all.samples += 1;
    }
    all
}

/// What a request in JSON says, to be refused where the engines would refuse it.
pub(crate) fn json(request: &Request, path: &str) -> Value {
    assert_eq!(request.line, format!("POST {path} HTTP/1.1"));
    assert_eq!(request.header("content-type"), Some("application/json"));
    serde_json::from_slice(&request.body).unwrap()
}

/// A profile's labels, as each engine demands that they are: a name once, of the form that Prometheus has.
pub(crate) fn labels(list: &Value) -> Vec<(String, String)> {
    let text = |label: &Value, key: &str| label[key].as_str().unwrap().to_owned();
    let all: Vec<_> =
        list.as_array().unwrap().iter().map(|label| (text(label, "name"), text(label, "value"))).collect();
    for (at, (name, value)) in all.iter().enumerate() {
        let fine = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(name.chars().all(fine) && !name.starts_with(|c: char| c.is_ascii_digit()), "{name}");
        assert!(!value.is_empty() && all[..at].iter().all(|(other, _)| other != name), "{name}");
    }
    all
}

pub(crate) fn label<'l>(labels: &'l [(String, String)], name: &str) -> &'l str {
    labels.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
}

/// What a request of OTLP says, read by the protocol's own classes.
pub(crate) fn otlp(request: &Request) -> Value {
    assert_eq!(request.line, "POST /v1development/profiles HTTP/1.1");
    assert_eq!(request.header("content-type"), Some("application/x-protobuf"));
    assert_eq!(request.header("content-encoding"), Some("gzip"));
    let modules = target_dir().join("readers/python");
    assert!(
        modules.join("opentelemetry").exists(),
        "{} lacks opentelemetry: ./test installs it",
        modules.display()
    );
    let reader = concat!(env!("CARGO_MANIFEST_DIR"), "/readers/otlp.py");
    let read = finish(Command::new("/usr/bin/python3").arg(reader).arg(&modules), &request.body);
    assert!(read.status.success(), "{}", read.err());
    serde_json::from_slice(&read.stdout).unwrap()
}

/// What the report says: blocks and bytes allocated, blocks and bytes live.
pub(crate) fn figures(report: &Report) -> [i64; 4] {
    let totals = &report.totals;
    let all = [
        totals.allocations + totals.reallocations,
        totals.allocated_bytes,
        totals.live_allocations,
        totals.live_bytes,
    ];
    all.map(u64::cast_signed)
}

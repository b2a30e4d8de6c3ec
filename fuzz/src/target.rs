//! What the fuzz targets and the tests do with bytes: a function for each target, which panics if something is wrong.

use std::cell::RefCell;

use arbitrary::Unstructured;
use grapnel_lines::{Form, serve};
pub use grapnel_relocator::Isa;
use serde_json::Value;

use crate::{
    case::Case,
    generate,
    tally::{Judges, Tally},
};

/// How many states each window is run from. More inputs find more than more states.
const STATES: u64 = 2;

thread_local! {
    /// Starting an emulator takes longer than judging a window.
    static JUDGES: RefCell<Option<Judges>> = const { RefCell::new(None) };
}

/// Makes a case up from the bytes, relocates it, and answers what became of it.
///
/// # Panics
///
/// If a judge says that the relocated code differs, with the case as a file for `fuzz/regressions/`.
pub fn relocate(isa: Isa, entropy: &[u8]) -> Tally {
    match generate::case(isa, &mut Unstructured::new(entropy)) {
        Ok(case) => judged(&case, seed(entropy)),
        // The bytes ran out in the middle of a choice.
        Err(_) => Tally::default(),
    }
}

/// Relocates a case and has every judge look at it, from states that follow from `seed`. Answers what became of it.
///
/// # Panics
///
/// As [`relocate`], and if there is no emulator.
pub fn judged(case: &Case, seed: u64) -> Tally {
    JUDGES.with_borrow_mut(|judges| {
        let judges = match judges {
            Some(judges) => judges,
            None => judges.insert(Judges::new(STATES).expect("the emulator starts")),
        };
        let mut tally = Tally::default();
        tally.add(case, judges, seed);
        if let Some((case, difference)) = tally.mismatches.first() {
            panic!("save this in fuzz/regressions/ with the fix:\n\n{case}\n{difference}");
        }
        tally
    })
}

/// The same states for the same bytes: FNV-1a.
fn seed(entropy: &[u8]) -> u64 {
    entropy
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Gives the bytes to `grapnel relocate`, and answers how many requests were in them.
///
/// # Panics
///
/// If a line has no answer of its own, or one that is none.
pub fn command(input: &[u8]) -> u64 {
    let mut answers = Vec::new();
    let tally = serve(input, &mut answers, Form::Json).expect("memory can be read and written");
    let wanted = input.split(|&byte| byte == b'\n').filter(|line| !line.trim_ascii().is_empty()).count();
    assert_eq!(tally.accepted + tally.refused + tally.bad, wanted as u64, "each line is counted once");

    let text = str::from_utf8(&answers).expect("answers are text");
    assert_eq!(text.lines().count(), wanted, "each line is answered by one");
    assert!(text.is_empty() || text.ends_with('\n'), "the last answer is whole");
    for line in text.lines() {
        check(&serde_json::from_str(line).expect("an answer is JSON"));
    }
    for width in [0, 80, 200] {
        let mut explained = Vec::new();
        let same =
            serve(input, &mut explained, Form::Text { width }).expect("memory can be read and written");
        assert_eq!(same, tally, "both forms tell the same");
        let text = str::from_utf8(&explained).expect("explanations are text");
        assert!(!text.chars().any(|c| c.is_control() && c != '\n'), "nothing moves a terminal's cursor");
    }
    tally.accepted + tally.refused
}

/// An answer has what `docs/relocate.md` says.
fn check(answer: &Value) {
    if answer["ok"] == true {
        let consumed = answer["consumed"].as_u64().expect("a length");
        let len = answer["bytes"].as_str().expect("hex").len() as u64 / 2;
        let map = answer["map"].as_array().expect("a list of pairs");
        let mut last = (0, 0);
        for pair in map {
            let (from, to) = (pair[0].as_u64().expect("an offset"), pair[1].as_u64().expect("an offset"));
            assert!(last <= (from, to) && from <= consumed && to <= len, "{answer}");
            last = (from, to);
        }
        assert_eq!(map.first(), Some(&serde_json::json!([0, 0])), "{answer}");
        assert!(answer["resumes"] == true || last.0 < consumed, "{answer}");
        return;
    }
    let error = &answer["error"];
    let kind = error["kind"].as_str().expect("a kind");
    assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
    assert_eq!(kind == "bad-request", error["line"].is_u64(), "{answer}");
    assert_eq!(kind == "bad-request", error["at"].is_null(), "{answer}");
}

//! Many windows, held against what the library answers.

use arbitrary::Unstructured;
use fastrand::Rng;
use grapnel_fuzz::{case::Case, generate};
use grapnel_relocator::{CodeAddr, Error, Isa, Window, WindowOptions};
use serde_json::{Value, json};

use crate::{answers, hex, relocate};

/// What the library says, as the documentation has it.
fn expected(case: &Case) -> Value {
    match case.relocate() {
        Ok((window, relocated)) => json!({
            "ok": true,
            "consumed": window.len(),
            "bytes": hex(relocated.bytes()),
            "map": relocated.map().iter().map(|(from, to)| [from, to]).collect::<Vec<_>>(),
            "clobbers": relocated.clobbers().names().collect::<Vec<_>>(),
            "resumes": relocated.resumes(),
            "landing_pads": relocated.landing_pads().iter().map(CodeAddr::to_string).collect::<Vec<_>>(),
        }),
        Err(error) => json!({
            "ok": false,
            "error": {
                "kind": error.kind(),
                "at": error.at().to_string(),
                "instruction": error.culprit().map(|culprit| &culprit.text),
                "message": error.to_string(),
                "remedy": error.remedy(),
            },
        }),
    }
}

/// Without an extent, the function goes on behind an exit if the window needs what is there.
fn as_the_command_takes_it(case: &Case) -> Case {
    let Case { isa, from, ref source, min_len, options, .. } = *case;
    let window = |options| Window::decode_with(isa, from, source, min_len, options);
    let all = WindowOptions { extent: Some(1 << 30), ..options };
    let needs_all = options.extent.is_none()
        && matches!(window(options), Err(Error::EndsEarly { .. }))
        && window(all).is_ok();
    Case { options: if needs_all { all } else { options }, ..case.clone() }
}

#[test]
fn thousands_of_windows_are_answered_as_the_library_does() {
    let mut rng = Rng::with_seed(42);
    let mut cases = Vec::new();
    let mut input = String::new();
    while cases.len() < 8000 {
        let mut entropy = [0; generate::ENTROPY];
        rng.fill(&mut entropy);
        let isa = Isa::ALL[cases.len() % Isa::ALL.len()];
        let case = generate::case(isa, &mut Unstructured::new(&entropy)).expect("entropy enough");
        let options: WindowOptions = case.options;
        input += &json!({
            "isa": isa.name(),
            "from": case.from.to_string(),
            "to": case.to.to_string(),
            "bytes": hex(&case.source),
            "min_len": case.min_len,
            "extent": options.extent,
            "padding": options.allow_padding,
            "entry": options.entry,
            "shadow_stack": options.shadow_stack,
        })
        .to_string();
        input.push('\n');
        cases.push(case);
    }
    let outcome = relocate(&input);
    let answers = answers(&outcome);
    assert_eq!(answers.len(), cases.len());
    for (case, answer) in cases.iter().zip(&answers) {
        // A generated case may be what the command takes for no request.
        if answer["error"]["kind"] != "bad-request" {
            assert_eq!(*answer, expected(&as_the_command_takes_it(case)), "{}", case.render());
        }
    }
    let of = |isa: Isa, wanted: bool| {
        cases.iter().zip(&answers).filter(|(case, answer)| case.isa == isa && answer["ok"] == wanted).count()
    };
    for &isa in Isa::ALL {
        assert!(of(isa, true) > 500, "{isa}: {} accepted", of(isa, true));
    }
}

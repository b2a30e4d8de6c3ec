//! Lines that are no requests, and requests for what can't be.

use serde_json::{Value, json};

use crate::{PLAIN, answers, relocate, request};

/// Every kind of line that is no request, and a piece of what is said of it.
#[test]
fn bad_lines_are_answered_and_the_run_goes_on() {
    let good = request("x86_64", 0x1000, "554889e553", 5);
    let with = |field: &str, value: &str| {
        let mut fields: serde_json::Map<String, Value> = serde_json::from_str(&good).expect("it is JSON");
        fields.insert(field.to_owned(), Value::Null);
        json!(fields).to_string().replace(&format!("\"{field}\":null"), &format!("\"{field}\":{value}"))
    };
    let on = |isa: &str, field: &str, value: &str| with(field, value).replace("x86_64", isa);
    let deep = format!("{{\"isa\":{}", "[".repeat(100_000));
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"no json".into(), "no JSON object"),
        (b"\0".into(), "no JSON object"),
        (b"\xff\xfe".into(), "no JSON object"),
        (b"\xef\xbb\xbf{}".into(), "no JSON object"),
        (b"[\"x86_64\",1,2,\"90\",1]".into(), "no JSON object"),
        (b"{".into(), "EOF while parsing an object, at column 1"),
        (good[..good.len() - 1].into(), "EOF"),
        (format!("{good}}}").into(), "trailing characters"),
        (format!("{good} {good}").into(), "trailing characters"),
        (good.replace("x86_64", "x86\u{0}_64").into(), "control character"),
        ([&good.as_bytes()[..9], b"\xff", &good.as_bytes()[9..]].concat(), "unicode"),
        (deep.into(), "invalid type: sequence"),
        (b"{}".into(), "missing field `isa`"),
        (good.replace("\"min_len\"", "\"min_length\"").into(), "unknown field `min_length`"),
        (good.replacen('{', "{\"from\":1,", 1).into(), "duplicate field `from`"),
        (with("isa", "\"mips\"").into(), "`isa` is `mips`"),
        (with("isa", "\"X86_64\"").into(), "`isa` is `X86_64`"),
        (with("isa", "64").into(), "`isa` is a number, not text"),
        (with("isa", "null").into(), "`isa` is null, not text"),
        (with("isa", "{}").into(), "invalid type: map"),
        (with("from", "\"\"").into(), "`from` is ``"),
        (with("from", "\"0x\"").into(), "`from` is `0x`"),
        (with("from", "\"12fe\"").into(), "`from` is `12fe`"),
        (with("from", "\"+12\"").into(), "`from` is `+12`"),
        (with("from", "\"0x+12\"").into(), "`from` is `0x+12`"),
        (with("from", "\" 12\"").into(), "`from` is ` 12`"),
        (with("from", "\"0x10000000000000000\"").into(), "`from` is `0x10000000000000000`"),
        (with("from", "18446744073709551616").into(), "`from` is `18446744073709551616`"),
        (with("from", "true").into(), "`from` is true or false, not a number"),
        (with("to", "-1").into(), "`to` is `-1`"),
        (with("to", "1.5").into(), "`to` is `1.5`"),
        (with("to", "1e400").into(), "out of range"),
        (with("to", "0x1000").into(), "column"),
        (with("min_len", "0").into(), "`min_len` is 0"),
        (with("min_len", "-5").into(), "`min_len` is `-5`"),
        (with("min_len", "5.0").into(), "`min_len` is `5.0`"),
        (with("min_len", "\"five\"").into(), "`min_len` is `five`"),
        (with("min_len", "1e0").into(), "`min_len` is `1e0`"),
        (with("min_len", "1e30").into(), "`min_len` is `1e30`"),
        (with("bytes", "\"\"").into(), "`bytes` is empty"),
        (with("bytes", "\"555\"").into(), "3 hex digits, an odd number"),
        (with("bytes", "\"5g\"").into(), "'g' at position 1"),
        (with("bytes", "\"0x55\"").into(), "'x' at position 1"),
        (with("bytes", "\"55 48\"").into(), "' ' at position 2"),
        (with("bytes", "\"5\u{e9}\"").into(), "'\u{e9}' at position 1"),
        (with("bytes", "[85]").into(), "invalid type: sequence"),
        (with("extent", "-1").into(), "`extent` is `-1`"),
        (with("extent", "false").into(), "`extent` is true or false"),
        (with("padding", "1").into(), "`padding` is a number"),
        (with("entry", "\"no\"").into(), "`entry` is text"),
        (on("aarch64", "from", "\"0x1002\"").into(), "`from` is 0x1002, not a multiple of 4"),
        (on("a32", "from", "\"0x1002\"").into(), "`from` is 0x1002, not a multiple of 4"),
        (on("a32", "to", "\"0x1001\"").into(), "`to` is 0x1001, not a multiple of 4"),
        (on("t32", "from", "\"0x1001\"").into(), "bit 0"),
        (on("t32", "to", "\"0x1001\"").into(), "bit 0"),
        (on("a32", "from", "\"0x100000000\"").into(), "32 bits"),
        (on("a32", "to", "\"0x100000000\"").into(), "32 bits"),
        (on("t32", "to", "\"0x100000000\"").into(), "32 bits"),
        (with(&"n".repeat(1 << 20), "1").into(), "unknown field `nnn"),
        (with("isa", &format!("\"{}\"", "x".repeat(1 << 20))).into(), "`isa` is `xxx"),
    ];
    let mut input = Vec::new();
    for (line, _) in &cases {
        input.extend([line.as_slice(), b"\n", good.as_bytes(), b"\n"].concat());
    }
    let outcome = relocate(input);
    assert_eq!(outcome.status.code(), Some(1));
    let answers = answers(&outcome);
    assert_eq!(answers.len(), cases.len() * 2);
    for (number, (line, said)) in cases.iter().enumerate() {
        let line = String::from_utf8_lossy(&line[..line.len().min(200)]);
        let error = &answers[number * 2]["error"];
        assert_eq!(answers[number * 2]["ok"], false, "{line}");
        assert_eq!(error["kind"], "bad-request", "{line}: {error}");
        assert_eq!(error["line"], number * 2 + 1);
        let message = error["message"].as_str().expect("a message");
        assert!(message.contains(said), "{said:?} in {message:?}, for {line}");
        assert!(message.len() < 500, "{message}");
        assert_eq!(answers[number * 2 + 1]["ok"], true);
    }
}

#[test]
fn lengths_beyond_a_window_are_refused() {
    for min_len in ["33", "\"0xffffffffffffffff\"", "18446744073709551615"] {
        for (isa, bytes, _) in PLAIN {
            let line =
                request(isa, 0x1000, bytes, 1).replace("\"min_len\":1", &format!("\"min_len\":{min_len}"));
            let outcome = relocate(line);
            assert_eq!(outcome.status.code(), Some(0), "a refusal is an answer");
            assert_eq!(answers(&outcome)[0]["error"]["kind"], "window-too-long");
        }
    }
}

/// A function of 50 MB, and lines of 100 MB that are nothing.
#[test]
fn huge_lines() {
    let bytes = format!("554889e553{}", "90".repeat(50_000_000));
    let input = [
        request("x86_64", 0x1000, &bytes, 5).as_bytes(),
        b"\n",
        "{".repeat(100_000_000).as_bytes(),
        b"\n",
        &vec![0; 100_000_000],
        b"\n",
        request("x86_64", 0x1000, "554889e553", 5).as_bytes(),
    ]
    .concat();
    let outcome = relocate(input);
    let answers = answers(&outcome);
    assert_eq!(answers.len(), 4);
    assert_eq!((&answers[0]["ok"], &answers[0]), (&json!(true), &answers[3]));
    assert_eq!([&answers[1], &answers[2]].map(|bad| &bad["error"]["kind"]), ["bad-request"; 2]);
}

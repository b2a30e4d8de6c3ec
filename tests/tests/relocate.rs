//! `grapnel relocate` as programs and people use it.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, fs};

use arbitrary::Unstructured;
use fastrand::Rng;
use grapnel_fuzz::{case::Case, generate};
use grapnel_relocator::{CodeAddr, Isa, WindowOptions};
use grapnel_tests::programs;
use grapnel_tests::run::{Outcome, finish, wait};
use serde_json::{Value, json};

fn command(options: &[&str]) -> Command {
    let mut command = Command::new(programs::grapnel());
    command.arg("relocate").args(options);
    command
}

fn relocate(input: impl AsRef<[u8]>) -> Outcome {
    finish(&mut command(&[]), input.as_ref())
}

/// The answers, each of which must be a line of its own.
#[track_caller]
fn answers(outcome: &Outcome) -> Vec<Value> {
    assert_eq!(outcome.err(), "");
    let text = outcome.out();
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is whole");
    text.lines().map(|line| serde_json::from_str(line).expect("an answer is JSON")).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What works on each instruction set: a few instructions that use no address, and their length.
const PLAIN: [(&str, &str, u64); 4] = [
    ("x86_64", "554889e553", 5),
    ("aarch64", "fd7bbfa9fd030091", 4),
    ("a32", "00482de90db0a0e1", 4),
    ("t32", "10b5044600bf00bf", 4),
];

fn request(isa: &str, from: u64, bytes: &str, min_len: u64) -> String {
    format!(r#"{{"isa":"{isa}","from":"{from:#x}","to":"0x200000","bytes":"{bytes}","min_len":{min_len}}}"#)
}

#[test]
fn the_example_of_the_documentation() {
    let text = include_str!("../../docs/relocate.md");
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

#[test]
fn answers_come_in_the_order_of_the_requests() {
    let all: Vec<String> = (0..3000)
        .map(|number| match number % 5 {
            4 => format!("no request {number}"),
            isa => request(PLAIN[isa].0, 0x10000 + number as u64 * 16, PLAIN[isa].1, PLAIN[isa].2),
        })
        .collect();
    let outcome = relocate(all.join("\n"));
    assert_eq!(outcome.status.code(), Some(1));
    let answers = answers(&outcome);
    assert_eq!(answers.len(), all.len());
    let alone: Vec<Value> = (0..4).map(|isa| self::answers(&relocate(&all[isa])).remove(0)).collect();
    for (number, answer) in answers.iter().enumerate() {
        if number % 5 == 4 {
            assert_eq!(answer["error"]["line"], number + 1, "{answer}");
            continue;
        }
        // Only the distance differs.
        for field in ["ok", "consumed", "map"] {
            assert_eq!(answer[field], alone[number % 5][field]);
        }
    }
    assert_eq!(relocate(all.join("\n")).stdout, outcome.stdout, "the same again");
}

#[test]
fn line_ends_and_blank_lines() {
    let one = request("x86_64", 0x1000, "554889e553", 5);
    let usual = relocate(format!("{one}\n"));
    assert_eq!(usual.status.code(), Some(0));
    assert_eq!(relocate(&one).stdout, usual.stdout, "without a newline at the end");
    assert_eq!(relocate(format!("\n  \n\t{one}  \r\n\r\n\n")).stdout, usual.stdout);
    for nothing in ["", "\n", "\r\n", " "] {
        let outcome = relocate(nothing);
        assert_eq!((outcome.out().as_str(), outcome.status.code()), ("", Some(0)));
    }
    // Blank lines count.
    assert_eq!(answers(&relocate("\n\n{}"))[0]["error"]["line"], 3);
}

#[test]
fn numbers_may_be_written_in_every_way() {
    let usual = relocate(request("x86_64", 0x1000, "554889e553", 5)).stdout;
    for from in ["4096", "\"4096\"", "\"0x1000\"", "\"0X1000\"", "\"0x0000000000000000001000\""] {
        for min_len in ["5", "\"5\"", "\"0x5\""] {
            let line = format!(
                r#"{{"min_len":{min_len},"bytes":"554889E553","to":2097152,"from":{from},"isa":"x86_\u00364"}}"#
            );
            assert_eq!(relocate(line).stdout, usual);
        }
    }
}

#[test]
fn what_is_known_of_the_function_counts() {
    let with = |more: &str| {
        let line = format!(
            r#"{{"isa":"x86_64","from":4096,"to":2097152,"bytes":"c3cccccccccccccc","min_len":5{more}}}"#
        );
        answers(&relocate(line)).remove(0)
    };
    assert_eq!(with("")["error"]["kind"], "ends-early");
    assert_eq!(with(r#","extent":null,"padding":null,"entry":null"#)["error"]["kind"], "ends-early");
    assert_eq!(with(r#","extent":1,"padding":false"#)["error"]["kind"], "ends-early");
    let padded = with(r#","extent":"0x1","padding":true,"entry":false"#);
    assert_eq!((&padded["ok"], &padded["consumed"]), (&json!(true), &json!(5)), "{padded}");
    assert_eq!(padded["resumes"], false);
}

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
        (with("from", "18446744073709551616").into(), "`from` is `18446744073709552000`"),
        (with("from", "true").into(), "`from` is true or false, not a number"),
        (with("to", "-1").into(), "`to` is `-1`"),
        (with("to", "1.5").into(), "`to` is `1.5`"),
        (with("to", "1e400").into(), "out of range"),
        (with("to", "0x1000").into(), "column"),
        (with("min_len", "0").into(), "`min_len` is 0"),
        (with("min_len", "-5").into(), "`min_len` is `-5`"),
        (with("min_len", "5.0").into(), "`min_len` is `5`"),
        (with("min_len", "\"five\"").into(), "`min_len` is `five`"),
        (with("min_len", "1e30").into(), "`min_len` is `1"),
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

/// One request, its answer, and the next only then.
#[test]
fn no_answer_is_held_back() {
    for option in [&[][..], &["--explain"]] {
        let mut child = command(option)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("grapnel can be started");
        let mut input = child.stdin.take().expect("a pipe");
        let output = child.stdout.take().expect("a pipe");
        let (lines, received) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                lines.send(line.expect("a line")).expect("someone listens");
            }
        });
        let next = || received.recv_timeout(Duration::from_secs(60)).expect("an answer comes");
        let one = request("x86_64", 0x1000, "554889e553", 5);
        for _ in 0..100 {
            writeln!(input, "{one}").expect("it reads");
            while !next().contains("resumes") {}
        }
        // Half of the next request must not hold an answer back either.
        write!(input, "{one}\n{}", &one[..20]).expect("it reads");
        while !next().contains("resumes") {}
        writeln!(input, "{}", &one[20..]).expect("it reads");
        while !next().contains("resumes") {}
        drop(input);
        assert_eq!(wait(&mut child, Duration::from_secs(60)).and_then(|status| status.code()), Some(0));
        reader.join().expect("it reads to the end");
    }
}

#[test]
fn a_closed_output_ends_it_quietly() {
    let one = request("x86_64", 0x1000, "554889e553", 5) + "\n";
    let mut child = command(&[])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("grapnel can be started");
    let mut input = child.stdin.take().expect("a pipe");
    let mut output = child.stdout.take().expect("a pipe");
    input.write_all(one.as_bytes()).expect("it reads");
    let mut first = [0; 10];
    output.read_exact(&mut first).expect("an answer");
    drop(output);
    // It ends by itself, though its input does not.
    for _ in 0..100_000 {
        if input.write_all(one.as_bytes()).is_err() {
            break;
        }
    }
    let status = wait(&mut child, Duration::from_secs(60)).expect("it ends");
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert_eq!((said.as_str(), status.code()), ("", Some(0)));
}

#[test]
fn an_output_that_is_full_is_said() {
    let full = fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let mut child = command(&["--isa", "x86_64", "--from", "0", "--to", "4096", "554889e553"])
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn()
        .expect("grapnel can be started");
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    assert_eq!(child.wait().expect("it ends").code(), Some(1));
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn a_request_by_options() {
    let by_line = relocate(request("x86_64", 0x1000, "554889e553", 5));
    let options = ["--isa", "x86_64", "--from", "0x1000", "--to", "2097152", "55", "48 89e5", "53"];
    let by_options = finish(&mut command(&options), b"not read");
    assert_eq!((by_options.out(), by_options.status.code()), (by_line.out(), Some(0)));
    for (bad, status) in [
        (&["--isa", "mips", "--from", "0", "--to", "0", "90"][..], 2),
        (&["--isa", "x86_64", "--from", "0", "--to", "zero", "90"], 2),
        (&["--isa", "x86_64", "90"], 2),
        (&["--isa", "x86_64", "--from", "0", "--to", "0"], 2),
        (&["--isa", "t32", "--from", "1", "--to", "0", "90"], 1),
        (&["--isa", "x86_64", "--from", "0", "--to", "0", "9"], 1),
    ] {
        let outcome = finish(&mut command(bad), b"");
        assert_eq!((outcome.out().as_str(), outcome.status.code()), ("", Some(status)), "{bad:?}");
        assert!(!outcome.err().contains("panicked") && !outcome.err().is_empty(), "{}", outcome.err());
    }
}

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
            assert_eq!(*answer, expected(case), "{}", case.render());
        }
    }
    let of = |isa: Isa, wanted: bool| {
        cases.iter().zip(&answers).filter(|(case, answer)| case.isa == isa && answer["ok"] == wanted).count()
    };
    for &isa in Isa::ALL {
        assert!(of(isa, true) > 500, "{isa}: {} accepted", of(isa, true));
    }
}

/// The file is written anew with `GRAPNEL_BLESS=1`.
#[track_caller]
fn golden(name: &str, actual: &str) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/explained").join(name);
    if env::var_os("GRAPNEL_BLESS").is_some() {
        fs::write(&path, actual).expect("the file can be written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(actual == expected, "{}: set GRAPNEL_BLESS=1 to accept\n{actual}", path.display());
}

#[test]
fn explained_x86_64() {
    explained(
        "x86_64",
        &[
            // push rbp; mov rbp, rsp; mov rax, [rip + 0x1000]; ...
            (0x7f00_0000_1000, 0x1000_0000, "554889e5488b0500100000c3", 5),
            // jrcxz; lock inc dword ptr [rip + 0x1000]
            (0x7f00_0000_1000, 0x7f00_0010_0000, "e33ef0ff0500100000c3", 5),
            // AVX-512 with a displacement and an immediate: wider than a side.
            (0x7f00_0000_1000, 0x7f00_0010_0000, "62f3f5482505001000000190", 5),
            (0x7f00_0000_1000, 0x1000_0000, "f0ff0500100000c3909090", 5),
            (0x7f00_0000_1000, 0x1000_0000, "55ff2d00010000", 5),
            (0x7f00_0000_1000, 0x1000_0000, "5548", 5),
            (0x7f00_0000_1000, 0x1000_0000, "5548", 99),
        ],
    );
}

#[test]
fn explained_aarch64() {
    explained(
        "aarch64",
        &[
            // stp x29, x30, [sp, #-16]!; mov x29, sp; bl; ret
            (0x40_1000, 0x50_0000, "fd7bbfa9fd03009140000094c0035fd6", 8),
            // adrp x0; ldr x1, [x0, #8]; cbz x1; ret
            (0x40_1000, 0x7f00_0000_0000, "00000090010440f9810000b4c0035fd6", 12),
            // ldr x0, literal in the window
            (0x40_1000, 0x50_0000, "40000058c0035fd61f2003d51f2003d5", 12),
            // svc; undefined
            (0x40_1000, 0x50_0000, "010000d4000000001f2003d5", 8),
            (0x40_1000, 0x50_0000, "fd7bbfa9fd03", 8),
        ],
    );
}

#[test]
fn explained_a32() {
    explained(
        "a32",
        &[
            // push {r11, lr}; ldr r0, [pc, #256]; bleq; bx lr
            (0x40_1000, 0x50_0000, "00482de900019fe54000000b1eff2fe1", 12),
            // add r0, pc, r1, lsl #2; b
            (0x40_1000, 0x7000_0000, "01018fe0feffffea0000a0e10000a0e1", 8),
            // add pc, pc, r0, lsl #2
            (0x40_1000, 0x50_0000, "00f18fe00000a0e10000a0e10000a0e1", 4),
            (0x40_1000, 0x50_0000, "00482de90db0", 8),
        ],
    );
}

#[test]
fn explained_t32() {
    explained(
        "t32",
        &[
            // push {r4, lr}; ldr r0, [pc, #8]; bl; pop {r4, pc}
            (0x40_1000, 0x50_0000, "10b5024800f040f810bd00bf00bf00bf", 8),
            // cmp r0, #0; it eq; moveq r0, #1; bx lr
            (0x40_1000, 0x50_0000, "002808bf0120704700bf00bf", 4),
            // cbz r0; add r0, pc; b
            (0x40_1000, 0x7000_0000, "20b1784400bffee700bf00bf", 4),
            // tbb [pc, r0]
            (0x40_1000, 0x50_0000, "dfe800f00203040500bf00bf", 4),
            (0x40_1000, 0x50_0000, "10b502", 8),
        ],
    );
}

#[track_caller]
fn explained(isa: &str, requests: &[(u64, u64, &str, u64)]) {
    let mut input = String::new();
    for (from, to, bytes, min_len) in requests {
        let line = json!({"isa": isa, "from": from, "to": to, "bytes": bytes, "min_len": min_len});
        input += &format!("{line}\n");
    }
    input +=
        "{\"isa\":\"\\u001b[2J\"}\n{\"isa\":\"\\u001b[2J\",\"from\":0,\"to\":0,\"bytes\":\"\",\"min_len\":1}";
    let outcome = finish(&mut command(&["--explain"]), input.as_bytes());
    assert_eq!((outcome.err().as_str(), outcome.status.code()), ("", Some(1)));
    let text = outcome.out();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(!text.contains('\u{1b}'));
    golden(&format!("{isa}.txt"), &text);
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
    let text = include_str!("../../docs/relocate.md");
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
            kinds.extend(body.split('"').skip(1).step_by(2).map(str::to_owned));
        }
    }
}

//! `grapnel relocate` as programs and people use it.

mod bad;
mod bulk;
mod docs;
mod explain;
mod service;

use std::process::Command;

use grapnel_tests::programs;
use grapnel_tests::run::{Outcome, finish};
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
    let alone: Vec<Value> = (0..4).map(|isa| crate::answers(&relocate(&all[isa])).remove(0)).collect();
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
    let goes_on = |more: &str| {
        let line = format!(
            r#"{{"isa":"x86_64","from":4096,"to":2097152,"bytes":"c34889e55dc3","min_len":5{more}}}"#
        );
        answers(&relocate(line)).remove(0)
    };
    assert_eq!(goes_on("")["consumed"], 5);
    assert_eq!(goes_on(r#","extent":1"#)["error"]["kind"], "ends-early");
    let padded = with(r#","extent":"0x1","padding":true,"entry":false"#);
    assert_eq!((&padded["ok"], &padded["consumed"]), (&json!(true), &json!(5)), "{padded}");
    assert_eq!(padded["resumes"], false);
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

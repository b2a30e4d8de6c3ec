//! Requests and answers through pipes.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::Stdio;
use std::time::Duration;

use grapnel_tests::run::wait;

use crate::{command, request};

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

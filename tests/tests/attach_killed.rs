//! `grapnel attach`, killed at any moment: the process goes on as if nobody had come.

use grapnel_tests::attaching::{Running, State, attach, may_trace};
use grapnel_tests::going::until;
use grapnel_tests::programs;
use grapnel_tests::run::{grapnel, temporary_dir};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// For how long it is killed; `GRAPNEL_KILL_SECONDS` says otherwise.
const SECONDS: u64 = 30;

/// What an agent might leave behind.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    code: u64,
    descriptors: usize,
    threads: usize,
    /// How much is mapped, the heap and the first thread's stack left out.
    bytes: u64,
    /// Mappings with code of no file.
    code_of_no_file: Vec<String>,
    /// Mappings with the agent's names.
    named: Vec<String>,
}

impl Left {
    fn of(pid: u32) -> Self {
        let State { mappings, code, descriptors, threads } = State::of(pid);
        let len = |line: &str| {
            let (start, end) = line.split(' ').next()?.split_once('-')?;
            let number = |text| u64::from_str_radix(text, 16).ok();
            Some(number(end)? - number(start)?)
        };
        let of_no_file = |line: &&str| line.contains("r-xp 00000000 00:00") && !line.contains('[');
        let named = |line: &&str| ["memfd:grapnel", "[anon:grapnel"].iter().any(|name| line.contains(name));
        let lines = |wanted: &dyn Fn(&&str) -> bool| {
            mappings.iter().map(String::as_str).filter(wanted).map(str::to_owned).collect()
        };
        Self {
            code,
            descriptors,
            threads,
            bytes: mappings.iter().filter_map(|line| len(line)).sum(),
            code_of_no_file: lines(&of_no_file),
            named: lines(&named),
        }
    }
}

/// Attaches for a moment, and is killed at this one, with its guard or `alone`: how many there were until then.
fn killed_at(moment: u64, alone: bool, dir: &Path, pid: u32) -> u64 {
    let output = Command::new(programs::program("killed_at"))
        .arg(format!("{}{moment}", if alone { "" } else { "all" }))
        .arg(programs::grapnel())
        .args(["attach", "-q", "--for", "0.01", "-o"])
        .arg(dir.join("t.grapnel"))
        .arg(pid.to_string())
        .stdin(Stdio::null())
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stdout);
    said.trim().parse().unwrap_or_else(|_| panic!("{output:?}"))
}

#[test]
fn a_process_is_left_well_by_a_recorder_that_is_killed_at_any_moment() {
    if !may_trace() {
        return;
    }
    let number = |name| std::env::var(name).ok().and_then(|text: String| text.parse().ok());
    let time = Duration::from_secs(number("GRAPNEL_KILL_SECONDS").unwrap_or(SECONDS));
    let seed = number("GRAPNEL_KILL_SEED").unwrap_or_else(|| fastrand::u64(..));
    println!("GRAPNEL_KILL_SEED={seed}");
    let dir = temporary_dir();
    let mut program = Running::at_work(&programs::program("sixteen"), "100000");
    let pid = program.pid();
    // The first ones have the program make its arenas, too.
    let moments = (0..3).map(|_| killed_at(u64::MAX, true, dir.path(), pid)).max().expect("three");
    let before = Left::of(pid);
    assert_eq!((before.code_of_no_file.len(), before.named.len()), (0, 0), "{before:?}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut rounds, mut killed) = (0, 0);
    let begun = Instant::now();
    // A busy machine comes to few of them in that time.
    while begun.elapsed() < time || rounds < 20 {
        let moment = random.u64(1..=moments);
        killed += u32::from(killed_at(moment, true, dir.path(), pid) == moment);
        rounds += 1;
        let started = Instant::now();
        loop {
            assert_eq!(
                program.0.try_wait().expect("its state"),
                None,
                "killed at moment {moment} of {moments}"
            );
            let now = Left::of(pid);
            if now == before {
                break;
            }
            let text = format!("killed at moment {moment} of {moments}");
            assert!(started.elapsed() < Duration::from_secs(60), "{text}: {now:?} instead of {before:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    println!("killed {killed} times in {rounds} rounds, at {moments} moments");
    assert!(4 * killed > rounds, "{killed} of {rounds} were killed before they ended");
    // It looks after itself.
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(program.0.try_wait().expect("its state"), None);
    let outcome = attach(dir.path(), pid, &["-q", "--for", "0.1"]);
    assert_eq!((outcome.status.code(), outcome.err()), (Some(0), String::new()));
    until("all as it was", || (Left::of(pid) == before).then_some(()));
}

/// Nobody is there to see to it but who is asked to.
#[test]
fn what_a_recorder_leaves_that_is_killed_with_its_guard_is_taken_out_on_request() {
    if !may_trace() {
        return;
    }
    let dir = temporary_dir();
    let mut program = Running::at_work(&programs::program("sixteen"), "100000");
    let pid = program.pid();
    let moments = (0..3).map(|_| killed_at(u64::MAX, true, dir.path(), pid)).max().expect("three");
    let mut before = Left::of(pid);
    let mut random = fastrand::Rng::new();
    println!("seed {}", random.get_seed());
    let (mut rounds, mut unfinished, mut whole) = (0, 0, 0);
    while rounds < 30 || unfinished == 0 {
        rounds += 1;
        let moment = random.u64(1..=moments);
        let text = format!("killed at moment {moment} of {moments}");
        killed_at(moment, false, dir.path(), pid);
        let detached = grapnel(["detach", &pid.to_string()]);
        let said = detached.err();
        unfinished += u32::from(said.contains("what it left is taken out"));
        whole += u32::from(said.contains("nothing of the agent is left"));
        assert!(rounds < 1000, "none was killed before it was done with coming in");
        let is_well = detached.status.code() == Some(0) || said.contains("isn't recorded");
        assert!(is_well, "{text}: {said}");
        assert_eq!(program.0.try_wait().expect("its state"), None, "{text}");
        // Threads of its making may still be on their way.
        until(&text, || {
            let mut now = Left::of(pid);
            // Before there is the session's memory nobody else knows of the page that the made thread runs.
            let pages = now.code_of_no_file.len().saturating_sub(before.code_of_no_file.len());
            if said.contains("isn't recorded") && pages == 1 && now.bytes == before.bytes + 4096 {
                (now.bytes, now.code_of_no_file) = (before.bytes, before.code_of_no_file.clone());
                (now == before).then(|| before = Left::of(pid))
            } else {
                (now == before).then_some(())
            }
        });
    }
    println!("{whole} taken out in {rounds} rounds, {unfinished} of them unfinished");
    assert!(whole > unfinished);
    let outcome = attach(dir.path(), pid, &["-q", "--for", "0.1"]);
    assert_eq!((outcome.status.code(), outcome.err()), (Some(0), String::new()));
}

//! Engines that take what they are sent.

use crate::common::{Profile, figures, json, label, labels, otlp, pprof, pushed, script, taken, wait};
use data_encoding::BASE64;
use grapnel_tests::attaching::{Running, attach, may_trace};
use grapnel_tests::engine::{Answer, Engine, Request};
use grapnel_tests::going::{Going, until};
use grapnel_tests::run::{Case, report, temporary_dir};
use serde_json::Value;
use std::io::Write;

/// Ends the script, and gives its figures.
fn end(mut going: Going) -> [i64; 4] {
    going.end();
    figures(&report(&going.dir.path().join("t.grapnel")))
}

/// What Parca is sent: labels, and the profile.
fn parca(request: &Request) -> (Vec<(String, String)>, Profile) {
    let all = json(request, "/api/profiles/writeraw");
    let [series] = all["series"].as_array().unwrap().as_slice() else { panic!("{all}") };
    let [sample] = series["samples"].as_array().unwrap().as_slice() else { panic!("{all}") };
    let profile = BASE64.decode(sample["rawProfile"].as_str().unwrap().as_bytes()).unwrap();
    assert!(profile.starts_with(&[0x1f, 0x8b]));
    (labels(&series["labels"]["labels"]), pprof(&profile))
}

/// What Pyroscope is sent: labels, and the profile.
fn pyroscope(request: &Request) -> (Vec<(String, String)>, Profile) {
    let all = json(request, "/push.v1.PusherService/Push");
    let [series] = all["series"].as_array().unwrap().as_slice() else { panic!("{all}") };
    let [sample] = series["samples"].as_array().unwrap().as_slice() else { panic!("{all}") };
    let id = sample["ID"].as_str().unwrap();
    let parts: Vec<usize> = id.split('-').map(str::len).collect();
    assert!(parts == [8, 4, 4, 4, 12] && id.as_bytes()[14] == b'4', "{id}");
    let profile = BASE64.decode(sample["rawProfile"].as_str().unwrap().as_bytes()).unwrap();
    (labels(&series["labels"]), pprof(&profile))
}

#[test]
fn parca_is_told_of_all_since_the_beginning() {
    let engine = Engine::new(|_, _| taken());
    let case = script("parca", &engine).option("--push-label").option("deployment.environment=test, \"1\"");
    let mut going = Going::new(&case);
    let pid = going.pid();
    wait(&engine, |request| parca(request).1.sums[3]);
    let before = engine.requests().len() - 1;
    going.child.stdin.as_mut().unwrap().write_all(b"\n\n\n\n").unwrap();
    let seen = engine.requests().len();
    until("two more", || (engine.requests().len() > seen + 1).then_some(()));
    let last = end(going);
    let all: Vec<_> = engine.requests().iter().map(parca).collect();
    for (of, profile) in &all {
        let at = |name| label(of, name);
        assert_eq!((at("__name__"), at("service_name"), at("command")), ("memory", "python3", "python3"));
        assert_eq!((at("deployment_environment"), at("pid")), ("test, \"1\"", pid.as_str()));
        // By these the engine names its types; a duration would make differences of them.
        assert_eq!(profile.said("PeriodType: "), Some("space bytes"));
        assert_eq!(profile.said("Duration: "), None, "{}", profile.text);
    }
    let profiles: Vec<&Profile> = all.iter().map(|(_, profile)| profile).collect();
    assert!(profiles[before].text.contains("ffi_call"), "{}", profiles[before].text);
    assert!(profiles.is_sorted_by_key(|profile| profile.sums[1]));
    assert!(profiles.is_sorted_by(|a, b| a.time() < b.time()));
    assert!(last[1] - profiles[before].sums[1] >= 4 << 20);
    assert_eq!(profiles.last().unwrap().sums, last);
}

#[test]
fn pyroscope_is_told_once_of_what_was_allocated() {
    // What it doesn't take comes with the next.
    let engine = Engine::new(|number, _| match number {
        1 => Answer::Say("500 Internal Server Error", String::new(), b"no room".to_vec()),
        _ => taken(),
    });
    let mut going =
        Going::new(&script("pyroscope", &engine).option("--push-label").option("service_name=mine"));
    wait(&engine, |request| pyroscope(request).1.sums[3]);
    let before = engine.requests().len();
    going.child.stdin.as_mut().unwrap().write_all(b"\n\n\n\n").unwrap();
    until("two more", || (engine.requests().len() > before + 1).then_some(()));
    let last = end(going);
    let mut sums = [0; 2];
    let all: Vec<_> = engine.requests().iter().map(pyroscope).collect();
    for (number, (of, profile)) in all.iter().enumerate() {
        let at = |name| label(of, name);
        assert_eq!((at("__name__"), at("__delta__"), at("service_name")), ("memory", "false", "mine"));
        assert_eq!(profile.said("PeriodType: "), Some("space bytes"));
        // What is live is no difference.
        assert!(number <= before || profile.sums[3] > profile.sums[1], "{}", profile.text);
        if number != 1 {
            sums[0] += profile.sums[0];
            sums[1] += profile.sums[1];
        }
    }
    assert!(all.len() >= 3);
    assert_eq!([sums[0], sums[1], all.last().unwrap().1.sums[2], all.last().unwrap().1.sums[3]], last);
}

#[test]
fn otlp_is_read_by_its_own_classes() {
    let engine =
        Engine::new(|_, _| Answer::Say("200 OK", "Content-Type: application/x-protobuf\r\n".into(), vec![]));
    let mut going = Going::new(&script("otlp", &engine).option("--push-label").option("host.name=here"));
    let pid = going.pid();
    wait(&engine, |request| {
        let profiles = otlp(request)["profiles"].take();
        let live = profiles.as_array().unwrap().iter().find(|profile| profile["type"] == "inuse_space");
        live.unwrap()["sum"].as_i64().unwrap()
    });
    let before = engine.requests().len();
    going.child.stdin.as_mut().unwrap().write_all(b"\n\n\n\n").unwrap();
    until("another", || (engine.requests().len() > before).then_some(()));
    let last = end(going);
    let requests: Vec<Value> = engine.requests().iter().map(otlp).collect();
    let (mut allocated, mut until) = ([0; 2], None);
    for (number, request) in requests.iter().enumerate() {
        let attributes = &request["attributes"];
        let text = |key: &str| attributes[key].as_str().unwrap();
        assert_eq!(text("service.name"), "python3");
        assert_eq!((text("process.executable.name"), text("host.name")), ("python3", "here"));
        assert_eq!(attributes["process.pid"].to_string(), pid);
        assert_eq!(request["scope"], "grapnel");
        let profiles = request["profiles"].as_array().unwrap();
        let of = |name: &str| profiles.iter().find(|profile| profile["type"] == name).unwrap();
        let live = of("inuse_space");
        assert_eq!((live["unit"].as_str(), live["duration"].as_u64()), (Some("bytes"), Some(0)));
        assert_eq!(live["period_type"], "space/bytes");
        let largest = live["largest"].as_array().unwrap();
        // The first ones may be of a Python that has not begun with the script.
        let is_known = number >= before;
        assert!(
            !is_known
                || largest
                    .iter()
                    .any(|frame| frame["functions"][0] == "ffi_call" && frame["type"] == "native"),
            "{live}"
        );
        assert!(
            !is_known
                || largest.iter().any(|frame| frame["build_id"].as_str().is_some_and(|id| id.len() == 40)),
            "{live}"
        );
        // What was allocated is counted from where it was counted to.
        for (sum, name) in allocated.iter_mut().zip(["alloc_objects", "alloc_space"]) {
            let Some(profile) = profiles.iter().find(|profile| profile["type"] == name) else { continue };
            *sum += profile["sum"].as_i64().unwrap();
            let [time, duration] = ["time", "duration"].map(|key| profile[key].as_u64().unwrap());
            assert!(duration > 0 && time + duration == live["time"].as_u64().unwrap());
            assert!(until.is_none_or(|until| time == until), "{profile}");
        }
        until = live["time"].as_u64();
    }
    let live = |name: &str| {
        let profiles = requests.last().unwrap()["profiles"].as_array().unwrap();
        profiles.iter().find(|profile| profile["type"] == name).unwrap()["sum"].as_i64().unwrap()
    };
    assert_eq!([allocated[0], allocated[1], live("inuse_objects"), live("inuse_space")], last);
}

#[test]
fn a_program_that_ends_before_the_first_time_is_told_of_once() {
    let engine = Engine::new(|_, _| taken());
    let case = pushed(Case::ours("temporary"), "parca", &engine).option("--push-every").option("3600");
    let recorded = case.recorded();
    assert!(recorded.outcome.status.success(), "{}", recorded.outcome.err());
    assert_eq!(recorded.outcome.err(), "", "nothing went wrong");
    let [request] = &engine.requests()[..] else { panic!("{:?}", engine.requests().len()) };
    assert_eq!(request.header("authorization"), None);
    let (of, profile) = parca(request);
    assert_eq!(label(&of, "service_name"), "temporary");
    assert_eq!(profile.sums, figures(&recorded.report()));
}

#[test]
fn each_process_is_told_of_by_its_own_names() {
    let engine = Engine::new(|_, _| taken());
    let script = "import ctypes, sys; block = ctypes.CDLL(None).malloc(7654321); sys.stdin.read()";
    let shell = format!("/usr/bin/python3 -c '{script}'; exit 0");
    let case = pushed(Case::new("/bin/sh").args(["-c", &shell]), "parca", &engine)
        .option("--push-every")
        .option("1");
    let mut going = Going::new(&case);
    let all = until("both", || {
        let all: Vec<_> = engine.requests().iter().map(parca).collect();
        let of = |name: &str, least| {
            all.iter().any(|(of, profile)| label(of, "command") == name && profile.sums[3] > least)
        };
        (of("sh", 0) && of("python3", 7_654_321)).then_some(all)
    });
    let of = |name: &str| all.iter().rfind(|(of, _)| label(of, "command") == name).unwrap();
    let ((shell, of_shell), (python, of_python)) = (of("sh"), of("python3"));
    assert_ne!(label(shell, "pid"), label(python, "pid"));
    assert_eq!((label(shell, "service_name"), label(python, "service_name")), ("sh", "sh"));
    assert!(of_python.text.contains("Py_BytesMain") && of_python.sums[3] > 7_654_321, "{}", of_python.text);
    assert!(!of_shell.text.contains("Py_") && of_shell.sums[3] < 7_654_321, "{}", of_shell.text);
    going.end();
}

#[test]
#[cfg(target_arch = "x86_64")]
fn who_is_attached_to_is_told_of() {
    if !may_trace() {
        return;
    }
    let engine = Engine::new(|_, _| taken());
    let (steady, dir) = (Running::steady("600"), temporary_dir());
    let url = format!("pyroscope+http://{}", engine.address);
    let outcome = attach(dir.path(), steady.pid(), &["--for", "3", "--push", &url, "--push-every", "1"]);
    assert!(outcome.status.success(), "{}", outcome.err());
    assert!(outcome.err().contains(&format!("went to {url}")), "{}", outcome.err());
    let all: Vec<_> = engine.requests().iter().map(pyroscope).collect();
    assert!(!all.is_empty() && all.iter().all(|(of, _)| label(of, "service_name") == "steady"));
}

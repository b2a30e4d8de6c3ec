//! Each stack walked a second time, frame by frame, without anything that is remembered of earlier walks: `grapnel run
//! --check-stacks` says on stderr if one differs, and then what the program prints is not as without it.

use grapnel_tests::programs;
use grapnel_tests::report::{Report, Site};
use grapnel_tests::run::{Case, grapnel};
use std::ffi::OsStr;
use std::path::Path;

fn check(case: Case) {
    let bare = case.bare();
    case.option("--check-stacks").recorded().outcome.same_as(&bare);
}

/// Memory that a walk is led to, and that another thread takes away meanwhile, or that was a stack's.
#[test]
#[cfg(target_arch = "x86_64")]
fn what_goes_while_a_walk_looks_at_it() {
    let library = ["library", "libxml2.so.2", "xmlNewDoc", "xmlTextWriterFlush"];
    for how in [&["code"][..], &["frame"], &library, &["protected"], &["guarded"], &["neighbour"]] {
        let case = Case::ours("goes_meanwhile").args(how);
        let recorded = case.recorded();
        assert_eq!(
            recorded.outcome.out(),
            "done\n",
            "{how:?}: {:?} {}",
            recorded.outcome.status,
            recorded.outcome.err()
        );
    }
}

/// While a call of an operator, or of a family's function, waits, others run, on stacks near its own; and it may go on when its place in the order, its thread or
/// its stack is another's.
#[test]
fn allocators_that_wait() {
    for (how, news, basin) in
        [("new", 1002, 0), ("thread", 1001, 0), ("family", 0, 1102), ("neighbour", 0, 1101)]
    {
        let recorded = Case::ours("waits_amid").arg(how).recorded();
        assert_eq!(recorded.outcome.out(), "done\n", "{how}: {:?}", recorded.outcome.status);
        let report = recorded.report();
        let of_family = report.heaps.iter().find(|heap| heap.name == "basin_malloc");
        let of_family = of_family.map_or(0, |heap| heap.totals.allocations);
        assert_eq!(of_family, if basin == 0 { 100 } else { basin }, "{how}");
        let functions =
            report.sites.iter().filter(|site| site.frames.iter().any(|frame| frame.name() == "allocating()"));
        let others: u64 = functions.map(|site| site.allocations).sum();
        assert_eq!(others, 1000 + if news == 0 { 0 } else { 1000 }, "{how}");
    }
}

#[test]
fn of_programs_made_for_it() {
    for program in [
        "every_function",
        "threads",
        "many_threads",
        "small_stack",
        "cxx",
        "kinds",
        "own_new",
        "signals",
        "jumps",
        "before_after",
        "interrupts",
        "temporary",
        "forks",
        "spawns",
        "cancelled",
        "made_up_return",
        "smaller_stack",
        "made_at_run_time",
    ] {
        check(Case::ours(program));
    }
    check(Case::ours("deep").arg("60"));
    check(Case::ours("deep").arg("3000"));
    for most in ["--max-frames=100", "--max-frames=20"] {
        check(Case::ours("deep_tree").args(["2000", "3000"]).option(most));
    }
    check(Case::ours("flood").args(["200", "4000"]));
    check(Case::ours("dlopen_loop").arg(programs::plug("a")).arg(programs::plug("b")));
    check(Case::ours("late_cxx").arg(programs::cxx_library("cxx_plug")));
}

/// Which take a question to the kernel for each page of the stack.
#[test]
fn of_large_stacks() {
    for program in ["overflow", "huge_frames"] {
        check(Case::ours(program));
    }
}

#[test]
fn of_real_programs() {
    let script = "import json, re\nd = [{'n': i, 't': str(i) * (i % 7)} for i in range(500)]\nt = json.dumps(d)\n\
                  print(len(t), len(re.findall('[0-9]+', t)), json.loads(t) == d)\n";
    check(
        Case::new("/usr/bin/python3")
            .args(["-c", script])
            .env("PYTHONMALLOC", "malloc")
            .env("PYTHONHASHSEED", "0")
            .env("PYTHONDONTWRITEBYTECODE", "1"),
    );
    let sql = "CREATE TABLE t(a, b); WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 3000) \
               INSERT INTO t SELECT i, 'x' || i FROM n; SELECT count(*), count(DISTINCT b) FROM t;";
    check(Case::new("/usr/bin/sqlite3").args(["-batch", ":memory:"]).stdin(sql));
    check(Case::new("/usr/bin/jq").args(["-c", "map(.a) | add"]).stdin(r#"[{"a":1},{"a":2}]"#));
    let items: String = (0..300).map(|n| format!("<i n=\"{n}\">x{}</i>", n % 7)).collect();
    check(Case::new("/usr/bin/xmllint").args(["--format", "-"]).stdin(format!("<all>{items}</all>")));
    let source =
        "#include <map>\n#include <string>\nstd::map<std::string, int> m;\nint f() { return m[\"a\"]++; }\n";
    for compiler in ["/usr/bin/gcc", "/usr/bin/clang"] {
        check(Case::new(compiler).args(["-O1", "-x", "c++", "-S", "-o", "-", "-"]).stdin(source));
    }
}

/// The programs of `benches/`, with less to do.
#[test]
fn of_the_synthetic_workloads() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../benches/programs");
    for (file, arguments) in [
        ("shallow.c", &["50"][..]),
        ("recursion.c", &["50"]),
        ("across.c", &["50"]),
        ("threads.c", &["50", "1"]),
        ("threads.c", &["50", "8"]),
        ("many_stacks.c", &["50"]),
    ] {
        check(Case::new(programs::executable_of(&folder.join(file))).args(arguments));
    }
}

fn frames_of(report: &Report, name: &str) -> Vec<Site> {
    let at = |site: &&Site| site.frames.iter().any(|frame| frame.name() == name);
    report.sites.iter().filter(at).cloned().collect()
}

/// The frames nearest to the leaf are kept, and a mark stands for the others.
#[test]
fn deep_stacks_are_cut_at_their_root_and_marked() {
    for (option, most) in [(None, 1024), (Some("--max-frames=50"), 50)] {
        let mut case = Case::ours("deep").arg("3000");
        if let Some(option) = option {
            case = case.option(option);
        }
        let sites = frames_of(&case.recorded().report(), "bottom");
        assert_eq!(sites.iter().map(|site| site.allocations).sum::<u64>(), 3);
        for site in sites {
            let (mark, kept) = site.frames.split_last().expect("frames");
            assert_eq!((mark.module.as_deref(), mark.offset.as_deref()), (None, Some("0x0")));
            assert_eq!(mark.mark.as_deref(), Some("depth-limit"));
            assert_eq!(kept.len(), most);
            assert!(kept[1..].iter().all(|frame| ["even", "odd", "bottom"].contains(&frame.name())));
        }
    }
}

/// Frames of code without unwind tables are guesses, and where there are no frame pointers either, a mark says that the stack goes no
/// further.
#[test]
fn code_without_tables_is_a_guess_and_what_lies_behind_it_is_not_made_up() {
    let recorded = Case::ours("made_at_run_time").recorded();
    let report = recorded.report();
    let of_size = |bytes: u64| {
        let sites: Vec<_> = report.sites.iter().filter(|site| site.allocated_bytes == bytes).collect();
        let [site] = sites[..] else { panic!("{bytes}: {sites:#?}") };
        site
    };
    let names = |site: &Site| site.frames.iter().map(|frame| frame.name().to_owned()).collect::<Vec<_>>();
    let (framed, lost, direct) = (of_size(50_000), of_size(100_000), of_size(3000));
    // The function that allocates, and the code that called it.
    assert_eq!(names(framed)[0], "thousand");
    assert!(framed.frames[1].module.is_none() && !framed.frames[1].guess && framed.frames[2].guess);
    assert_eq!(names(framed)[2..], names(direct)[..]);
    assert!(framed.frames[3..].iter().all(|frame| !frame.guess && frame.mark.is_none()));
    for (lost, name) in [(lost, "two_thousand"), (of_size(200_000), "four_thousand")] {
        assert_eq!((names(lost)[0].as_str(), lost.frames.len()), (name, 3));
        assert_eq!(lost.frames[2].mark.as_deref(), Some("caller-not-found"));
    }
    let text = grapnel([OsStr::new("report"), recorded.trace().as_os_str()]);
    let text = String::from_utf8_lossy(&text.stdout);
    let note = text.lines().find(|line| line.starts_with("note: the stacks of 100 allocations ("));
    assert!(note.is_some() && text.contains("\n       [caller not found]\n"), "{text}");
}

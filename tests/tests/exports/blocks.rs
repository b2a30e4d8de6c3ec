//! Formats that tell of single blocks.

use crate::common::{RECORDED, REPORT, exported, measures, our_reader, readers, said_by};
use grapnel_tests::programs;
use grapnel_tests::run::{Case, temporary_dir};
use serde_json::Value;
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The figures of collapsed stacks, added up.
fn sum_of(stacks: &Path) -> u64 {
    let text = std::fs::read_to_string(stacks).unwrap();
    text.lines().map(|line| line.rsplit_once(' ').unwrap().1.parse::<u64>().unwrap()).sum()
}

#[test]
fn heaptrack_sees_the_same_totals() {
    let dir = temporary_dir();
    let totals = &REPORT.totals;
    let figures = [
        ("allocations", totals.allocations + totals.reallocations),
        ("peak", totals.peak_bytes),
        ("leaked", totals.live_bytes),
        ("temporary", REPORT.sites.iter().map(|site| site.temporary_allocations).sum()),
    ];
    for name in ["plain.heaptrack", "app.heaptrack.gz", "app.heaptrack.zst"] {
        let file = exported(dir.path(), name, &[]);
        for (cost, figure) in figures {
            let stacks = dir.path().join("stacks.txt");
            // Some of its own suppressions hide what the dynamic linker keeps.
            let options = ["--disable-builtin-suppressions", "--flamegraph-cost-type", cost, "-F"];
            let arguments = options.map(OsStr::new);
            let all = [&arguments[..], &[stacks.as_os_str(), "-f".as_ref(), file.as_os_str()]].concat();
            let said = said_by("heaptrack_print", &all);
            assert!(said.contains("leak_library"), "the command: {said}");
            assert_eq!(sum_of(&stacks), figure, "{name}, {cost}");
            if cost == "leaked" {
                let stacks = std::fs::read_to_string(stacks).unwrap();
                assert!(
                    stacks.lines().any(|line| line.contains("main") && line.contains("leak")),
                    "{stacks}"
                );
            }
        }
    }
}

/// What `heaptrack_print` says first: allocations, and those that it takes for temporary ones.
fn counted_by_heaptrack(file: &Path) -> [u64; 2] {
    let said = said_by("heaptrack_print", &["-f".as_ref(), file.as_os_str()]);
    ["calls to allocation functions: ", "temporary memory allocations: "].map(|words| {
        let figure = said.lines().find_map(|line| line.strip_prefix(words)).expect("a figure");
        figure.split_whitespace().next().unwrap().parse().unwrap()
    })
}

/// A block that a `realloc` takes is no temporary one, whatever comes before and behind; one whose free comes behind those of
/// others is.
#[test]
fn heaptrack_counts_the_same_temporary_blocks() {
    let dir = temporary_dir();
    let python =
        |script: &str| Case::new("/usr/bin/python3").arg("-c").arg(script).env("PYTHONMALLOC", "malloc");
    let alone = "import json; rows = [str(i) * 3 for i in range(3000)]; json.dumps(rows); del rows";
    let together = "import json, threading\n\
        work = lambda: [json.dumps(list(range(n))) for n in range(300)]\n\
        threads = [threading.Thread(target=work) for _ in range(3)]\n\
        [t.start() for t in threads]; [t.join() for t in threads]";
    let cases = [
        (Case::ours("temporary"), 0),
        (python(alone), 0),
        // What several threads hold at the very moment of the peak.
        (python(together), 4),
        (Case::ours("threads"), 9),
    ];
    for (number, (case, missed)) in cases.into_iter().enumerate() {
        let recorded = case.recorded();
        let report = recorded.report();
        let (file, trace) = (dir.path().join(format!("{number}.heaptrack")), recorded.trace());
        let outcome =
            grapnel_tests::run::grapnel([OsStr::new("export"), "-o".as_ref(), file.as_ref(), trace.as_ref()]);
        assert!(outcome.status.success(), "{}", outcome.err());
        let temporary: u64 = report.sites.iter().map(|site| site.temporary_allocations).sum();
        let [allocations, counted] = counted_by_heaptrack(&file);
        assert_eq!(allocations, report.totals.allocations + report.totals.reallocations, "case {number}");
        assert!(
            (temporary.saturating_sub(missed)..=temporary).contains(&counted),
            "case {number}: {counted} for heaptrack, {temporary} in the report"
        );
    }
}

#[test]
fn ms_print_sees_peak_and_end() {
    let dir = temporary_dir();
    for name in ["app.massif", "massif.out.7"] {
        let file = exported(dir.path(), name, &[]);
        let said = said_by("ms_print", &["--threshold=0".as_ref(), file.as_os_str()]);
        let wholes: Vec<u64> = said
            .lines()
            .filter_map(|line| {
                line.strip_suffix("(heap allocation functions) malloc/new/new[], --alloc-fns, etc.")
            })
            .map(|line| {
                let bytes = line.trim().trim_end_matches("B)").rsplit('(').next().unwrap();
                bytes.replace(',', "").parse().unwrap()
            })
            .collect();
        assert_eq!(wholes, [REPORT.totals.peak_bytes, REPORT.totals.live_bytes], "{said}");
        assert!(said.contains(": main (leaks.c:"), "{said}");
    }
}

/// Blocks and bytes of the whole recording, at the peak and at the end.
fn whole(figure: &str) -> u64 {
    measures().iter().find(|(measure, _)| *measure == figure).expect("a measure").1
}

#[test]
fn dhats_viewer_sees_totals_peak_and_end() {
    let dir = temporary_dir();
    let viewer = "/usr/libexec/valgrind/dh_view.js";
    for name in ["app.dhat", "dhat.out.7"] {
        let file = exported(dir.path(), name, &[]);
        let script = our_reader("dh_view.js");
        let said = said_by("node", &[script.as_os_str(), viewer.as_ref(), file.as_os_str()]);
        let seen: Value = serde_json::from_str(&said).unwrap();
        let totals = &REPORT.totals;
        assert_eq!(seen["_totalBytes"], totals.allocated_bytes);
        assert_eq!(seen["_totalBlocks"], totals.allocations + totals.reallocations);
        assert_eq!(seen["_atTGmaxBytes"], totals.peak_bytes);
        assert_eq!(seen["_atTEndBytes"], totals.live_bytes);
        assert_eq!(seen["_atTEndBlocks"], totals.live_allocations);
        let text = seen["text"].as_str().unwrap();
        let line = programs::marked_line("leaks.c", "LEAK inlined");
        assert!(text.contains(&format!("(leaks.c:{line})")), "{text}");
    }
}

#[test]
fn dhats_lifetimes_and_maxima_are_those_of_the_blocks() {
    let dir = temporary_dir();
    let file = exported(dir.path(), "app.dhat", &[]);
    let dhat: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let points = dhat["pps"].as_array().unwrap();
    let end = dhat["te"].as_u64().unwrap();
    for point in points {
        let of = |key: &str| point[key].as_u64().unwrap();
        assert!(of("mb") >= of("gb").max(of("eb")) && of("mb") <= of("tb"), "{point}");
        assert!(of("mbk") <= of("tbk") && of("tl") <= of("tbk") * end, "{point}");
        if of("tbk") == of("ebk") {
            // All live to the end, so the most is what is live there.
            assert_eq!((of("mb"), of("mbk")), (of("eb"), of("ebk")), "{point}");
        }
    }
    assert!(
        points.iter().any(|point| point["ebk"] != 0 && point["tl"] != 0),
        "blocks live at the end have lived"
    );
}

/// The Firefox Profiler's own code, on the command line. It loads a file into a process that answers questions.
struct Profiler {
    home: tempfile::TempDir,
}

impl Profiler {
    fn load(file: &Path) -> Self {
        let profiler = Self { home: temporary_dir() };
        // It says that it has failed where it is only slow to start.
        let said = profiler.ask(&[OsStr::new("load"), file.as_os_str()]);
        let start = Instant::now();
        while profiler.ask(&["profile".as_ref(), "info".as_ref()]).is_err() {
            assert!(start.elapsed() < Duration::from_secs(100), "the profile isn't loaded: {said:?}");
            std::thread::sleep(Duration::from_millis(200));
        }
        profiler
    }

    fn ask(&self, arguments: &[&OsStr]) -> Result<String, String> {
        let script = readers().join("node_modules/@firefox-devtools/profiler-cli/dist/profiler-cli.js");
        assert!(script.exists(), "{} isn't there: ./test installs it", script.display());
        let output = Command::new("node").arg(script).args(arguments).env("HOME", self.home.path()).output();
        let output = output.expect("node can be started");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// The functions of a view, as JSON.
    fn samples(&self, strategy: &str) -> Value {
        let arguments = ["thread", "samples", "--json", "--strategy", strategy].map(OsStr::new);
        serde_json::from_str(&self.ask(&arguments).unwrap()).unwrap()
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        drop(self.ask(&["stop".as_ref(), "--all".as_ref()]));
    }
}

/// The sum of a view's samples, which are bytes here.
fn bytes_of(view: &Value) -> i64 {
    view["categoryBreakdown"]["totalSamples"].as_i64().unwrap_or_else(|| panic!("no sum of bytes: {view}"))
}

#[test]
fn the_firefox_profiler_sees_what_was_allocated_freed_and_retained() {
    let dir = temporary_dir();
    for name in ["app.firefox.json", "app.firefox.json.gz"] {
        let file = exported(dir.path(), name, &[]);
        let profiler = Profiler::load(&file);
        let (live, allocated) = (whole("live").cast_signed(), whole("allocated").cast_signed());
        assert_eq!(bytes_of(&profiler.samples("native-retained-allocations")), live);
        assert_eq!(bytes_of(&profiler.samples("native-allocations")), allocated);
        assert_eq!(bytes_of(&profiler.samples("native-deallocations-memory")).abs(), allocated - live);
        let functions = profiler.samples("native-retained-allocations").to_string();
        assert!(functions.contains("main") && functions.contains("libleak_library.so"), "{functions}");
    }
}

#[test]
fn the_firefox_profiler_imports_what_is_written_for_dhat() {
    let dir = temporary_dir();
    let profiler = Profiler::load(&exported(dir.path(), "app.dhat", &[]));
    let info = profiler.ask(&["profile".as_ref(), "info".as_ref()]).unwrap();
    assert!(info.contains("leaks"), "{info}");
}

#[test]
fn firefoxs_frames_have_files_and_lines() {
    let dir = temporary_dir();
    let file = exported(dir.path(), "app.firefox.json", &[]);
    let profile: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let thread = &profile["threads"][0];
    let (frames, functions) = (&thread["frameTable"], &thread["funcTable"]);
    let at =
        |table: &Value, column: &str, row: usize| table[column][row].as_u64().map(|value| value as usize);
    let line = programs::marked_line("leaks.c", "LEAK inlined");
    let found = (0..frames["length"].as_u64().unwrap() as usize).any(|row| {
        let function = at(frames, "func", row).unwrap();
        let file = at(functions, "fileName", function).and_then(|file| thread["stringArray"][file].as_str());
        file.is_some_and(|file| file.ends_with("leaks.c")) && frames["line"][row] == line
    });
    assert!(found, "line {line}");
    // The track of memory ends at what is live, and its highest point is the peak.
    let counts = profile["counters"][0]["samples"]["count"].as_array().unwrap();
    let sums = counts.iter().scan(0, |sum, count| {
        *sum += count.as_i64().unwrap();
        Some(*sum)
    });
    let sums: Vec<i64> = sums.collect();
    assert_eq!(sums.last().copied(), Some(REPORT.totals.live_bytes.cast_signed()));
    assert_eq!(sums.iter().max().copied(), Some(REPORT.totals.peak_bytes.cast_signed()));
}

/// What DuckDB answers to a query, a row on a line, columns separated by bars.
fn duckdb(query: &str) -> String {
    let script = "import sys; sys.path.insert(0, sys.argv[1]); import duckdb\n\
        print(\"\\n\".join(\"|\".join(map(str, row)) for row in duckdb.sql(sys.argv[2]).fetchall()))";
    let modules = readers().join("python");
    assert!(modules.exists(), "{} isn't there: ./test installs it", modules.display());
    let said =
        said_by("/usr/bin/python3", &["-c".as_ref(), script.as_ref(), modules.as_os_str(), query.as_ref()]);
    said.trim().to_owned()
}

#[test]
fn duckdb_reads_the_table_of_sites() {
    let dir = temporary_dir();
    let file = exported(dir.path(), "app.parquet", &[]).display().to_string();
    let sums = format!(
        "select sum(peak_bytes), sum(live_bytes), sum(allocated_bytes), sum(allocations), \
         sum(temporary_allocations), count(*) from '{file}'"
    );
    let mut expected: Vec<String> = measures().iter().map(|(_, whole)| whole.to_string()).collect();
    expected.push(REPORT.sites.len().to_string());
    assert_eq!(duckdb(&sums), expected.join("|"));
    let line = programs::marked_line("leaks.c", "LEAK list");
    let place = format!(
        "select count(*) > 0, bool_and(frames[1] = function) from '{file}' \
         where list_contains(frames, 'main') and file like '%leaks.c' and line = {line}"
    );
    assert_eq!(duckdb(&place), "True|True");
}

#[test]
fn duckdb_reads_the_table_of_events() {
    let dir = temporary_dir();
    let events = exported(dir.path(), "app.events.parquet", &[]).display().to_string();
    let sites = exported(dir.path(), "app.parquet", &[]).display().to_string();
    let totals = &REPORT.totals;
    let sums = format!(
        "select sum(change), count(*) filter (event = 'allocated'), sum(size) filter (event = 'allocated'), \
         count(*) filter (event = 'freed') from '{events}'"
    );
    let given = totals.allocations + totals.reallocations;
    let expected =
        [totals.live_bytes, given, totals.allocated_bytes, totals.frees].map(|figure| figure.to_string());
    assert_eq!(duckdb(&sums), expected.join("|"));
    let peak = format!(
        "select max(live) from (select sum(change) over (order by row) as live from \
         (select change, row_number() over () as row from '{events}'))"
    );
    assert_eq!(duckdb(&peak), totals.peak_bytes.to_string());
    // The same stacks are meant by the same numbers.
    let joined = format!(
        "select count(*) from (select stack, sum(change) as bytes from '{events}' group by stack) \
         join '{sites}' using (stack) where bytes != live_bytes"
    );
    assert_eq!(duckdb(&joined), "0");
}

#[test]
fn androids_dump_has_every_live_block() {
    let dir = temporary_dir();
    let file = exported(dir.path(), "app.heapdump.txt", &[]);
    let text = std::fs::read_to_string(file).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("Android Native Heap Dump v1.2"));
    let field = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).expect("a field of the head");
        line.trim().parse().unwrap()
    };
    let (mut bytes, mut blocks, mut records) = (0, 0, 0);
    let mut deepest = 0;
    for line in text.lines().filter(|line| line.starts_with("z 0  sz ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[2], words[4], words[6]), ("sz", "num", "bt"), "{line}");
        let (size, count): (u64, u64) = (words[3].parse().unwrap(), words[5].parse().unwrap());
        assert!(words[7..].iter().all(|word| u64::from_str_radix(word, 16).is_ok()), "{line}");
        deepest = deepest.max(words.len() as u64 - 7);
        (bytes, blocks, records) = (bytes + size * count, blocks + count, records + 1);
    }
    assert_eq!((bytes, blocks), (REPORT.totals.live_bytes, REPORT.totals.live_allocations));
    assert_eq!(field("Total memory:"), bytes);
    assert_eq!(field("Allocation records:"), records);
    assert_eq!(field("Backtrace size:"), deepest);
    // Every address lies in a mapping, by which other tools find the function.
    let maps: Vec<(u64, u64)> = text
        .lines()
        .skip_while(|line| *line != "MAPS")
        .skip(1)
        .take_while(|line| *line != "END")
        .map(|line| {
            let (start, rest) = line.split_once('-').unwrap();
            let end = rest.split_whitespace().next().unwrap();
            (u64::from_str_radix(start, 16).unwrap(), u64::from_str_radix(end, 16).unwrap())
        })
        .collect();
    assert!(maps.is_sorted() && maps.windows(2).all(|two| two[0].1 <= two[1].0));
    let pcs =
        text.lines().filter(|line| line.starts_with("z 0")).flat_map(|line| line.split_whitespace().skip(7));
    for pc in pcs {
        let pc = u64::from_str_radix(pc, 16).unwrap();
        assert!(maps.iter().any(|&(start, end)| (start..end).contains(&pc)), "{pc:x}");
    }
    assert!(text.lines().any(|line| line.starts_with("  bt_info {") && line.contains("\"main\"")), "{text}");
    assert_eq!(text.lines().last(), Some("END"));
}

#[test]
fn a_sample_is_refused_where_blocks_are_told() {
    let dir = temporary_dir();
    let recorded = Case::ours("temporary").option("--sample=1000").recorded();
    for name in ["a.dhat", "a.firefox.json", "a.heapdump.txt", "a.events.parquet"] {
        let path = dir.path().join(name);
        let trace = recorded.trace();
        let arguments: [&OsStr; 4] = ["export".as_ref(), "-o".as_ref(), path.as_os_str(), trace.as_os_str()];
        let outcome = grapnel_tests::run::grapnel(arguments);
        assert_eq!(outcome.status.code(), Some(1), "{name}: {}", outcome.err());
        assert!(outcome.err().contains("has a sample of them"), "{name}: {}", outcome.err());
        assert!(!path.exists());
    }
    assert!(RECORDED.outcome.status.success());
}

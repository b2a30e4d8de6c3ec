//! The work that is measured. All input is generated here or lies beside this file; nothing is random.

use grapnel_tests::programs;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program with its arguments, environment and input.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Short name, for the table.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// The program and its arguments.
    pub argv: Vec<OsString>,
    /// Variables beside `PATH`.
    pub env: Vec<(&'static str, &'static str)>,
    /// The file that is its stdin.
    pub stdin: PathBuf,
    /// How many times as long it may take under grapnel, of a program that people use.
    pub slowdown: Option<f64>,
    /// Blocks that are live at its peak, where they are so many that what is kept of them counts.
    pub live: u64,
    /// Whether it is shown beside those that something is asked of, and counts for no figure of all of them.
    pub aside: bool,
}

fn workload(name: &'static str, what: &'static str, argv: Vec<OsString>) -> Workload {
    let stdin = PathBuf::from("/dev/null");
    Workload { name, what, argv, env: Vec::new(), stdin, slowdown: None, live: 0, aside: false }
}

impl Workload {
    fn real(mut self, slowdown: f64) -> Self {
        self.slowdown = Some(slowdown);
        self
    }

    fn reads(mut self, stdin: PathBuf) -> Self {
        self.stdin = stdin;
        self
    }
}

fn words(all: &[&str]) -> Vec<OsString> {
    all.iter().map(OsString::from).collect()
}

fn write(dir: &Path, name: &str, text: &str) -> std::io::Result<PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    Ok(path)
}

fn synthetic(file: &str, arguments: &[&str]) -> Vec<OsString> {
    let program = programs::executable_of(&source(file)).into();
    [program].into_iter().chain(words(arguments)).collect()
}

/// A source in `programs/`.
pub fn source(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(file)
}

/// clang++ where it is installed; else g++'s compiler proper, since heaptrack doesn't follow g++ into it.
fn compiler(dir: &Path) -> std::io::Result<Workload> {
    let source = write(dir, "x.cc", include_str!("inputs/x.cc"))?;
    let clang = Path::new("/usr/bin/clang++");
    if clang.exists() {
        let mut argv = words(&["/usr/bin/clang++", "-O1", "-c", "-o"]);
        argv.extend([dir.join("x.o").into(), source.into()]);
        return Ok(workload("clang++", "clang++ -O1 -c of 60 lines of templates", argv).real(1.25));
    }
    let found = Command::new("gcc").arg("-print-prog-name=cc1plus").output()?;
    let cc1plus = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let mut argv =
        words(&[&cc1plus, "-quiet", "-imultiarch", "x86_64-linux-gnu", "-D_GNU_SOURCE", "-O1", "-o"]);
    argv.extend([dir.join("x.s").into(), source.into()]);
    Ok(workload("cc1plus", "g++ -O1 of 60 lines of templates", argv).real(1.25))
}

/// Programs that people use, each with `size` times the input that [`all`] gives it. The compiler and jq take seconds as it is, and have theirs.
fn real(dir: &Path, size: usize) -> std::io::Result<Vec<Workload>> {
    let times = |text: &str, count: usize| {
        let count_said = count.to_string();
        assert_eq!(text.matches(&count_said).count(), 1, "how much there is to do stands there once");
        text.replace(&count_said, &(count * size).to_string())
    };
    let script = write(dir, "work.py", &times(include_str!("inputs/work.py"), 25_000))?;
    let sql = write(dir, "work.sql", &times(include_str!("inputs/work.sql"), 150_000))?;
    let json = write(dir, "work.json", &json())?;
    let xml = write(dir, "work.xml", &xml(150_000 * size))?;

    let argv = vec!["/usr/bin/python3".into(), script.into()];
    let mut python = workload("python3", "json, re, dictionaries, PYTHONMALLOC=malloc", argv).real(1.5);
    python.env = vec![("PYTHONMALLOC", "malloc"), ("PYTHONHASHSEED", "0"), ("PYTHONDONTWRITEBYTECODE", "1")];

    let elements =
        if size == 1 { "parse and format 450,000 elements, 11 MB" } else { "parse and format elements" };
    let filter = "group_by(.tags[0]) | map({tag: .[0].tags[0], sum: (map(.v) | add), ids: map(.id)})";
    Ok(vec![
        compiler(dir)?,
        workload("jq", "group 200,000 objects, 14 MB", words(&["/usr/bin/jq", "-c", filter]))
            .real(1.25)
            .reads(json),
        workload(
            "sqlite3",
            "insert, index, join, update in memory",
            words(&["/usr/bin/sqlite3", "-batch", ":memory:"]),
        )
        .real(1.25)
        .reads(sql),
        python,
        workload("xmllint", elements, words(&["/usr/bin/xmllint", "--format", "-"])).real(1.5).reads(xml),
    ])
}

/// So many times the input of [`all`] do the programs of [`large`] have.
pub const LARGE: usize = 6;

/// Programs that people use, with so much to do that each takes seconds; their inputs are written into `dir`.
///
/// # Errors
/// When `dir` can't be written, or gcc can't be started.
pub fn large(dir: &Path) -> std::io::Result<Vec<Workload>> {
    real(dir, LARGE)
}

/// All workloads; their inputs are written into `dir`.
///
/// # Errors
/// When `dir` can't be written, or gcc can't be started.
pub fn all(dir: &Path) -> std::io::Result<Vec<Workload>> {
    let many = workload(
        "many stacks",
        "synthetic: one thread, a million live blocks, 700,000 stacks of 12 frames",
        synthetic("many_stacks.c", &["1500"]),
    );
    let made = workload(
        "made code",
        "synthetic: one thread, stacks of 5 to 36 frames of code made at run time, with frame pointers and no unwind tables; in no figure of \
         all",
        synthetic("made_at_run_time.c", &["3000"]),
    );
    let synthetic = vec![
        workload(
            "shallow",
            "synthetic: one thread, one stack of 6 frames",
            synthetic("shallow.c", &["6000"]),
        ),
        workload(
            "recursion",
            "synthetic: one thread, varied stacks of 40 frames",
            synthetic("recursion.c", &["2000"]),
        ),
        workload(
            "across",
            "synthetic: two threads that free each other's blocks, 12 frames",
            synthetic("across.c", &["4000"]),
        ),
        workload(ONE_THREAD, "synthetic: the next with one thread", synthetic("threads.c", &["4000", "1"])),
        workload(
            EIGHT_THREADS,
            "synthetic: eight threads, stacks of about 12 frames",
            synthetic("threads.c", &["4000", "8"]),
        ),
        Workload { live: 1_000_000, ..many },
        Workload { aside: true, ..made },
    ];
    Ok(real(dir, 1)?.into_iter().chain(synthetic).collect())
}

/// The name of [`nothing`].
pub const NOTHING: &str = "nothing";

/// The workload that shows what a tool costs once.
pub fn nothing() -> Workload {
    workload(NOTHING, "a program that does nothing", words(&["/bin/true"]))
}

/// Long recordings, of so many events each.
pub fn long(events: u64) -> Vec<Workload> {
    let thousands = |share: u64| (events / share / 1000).to_string();
    let many = workload(
        "long, many stacks",
        "a million live blocks, 700,000 stacks of 12 frames",
        synthetic("many_stacks.c", &[&thousands(2)]),
    );
    vec![
        workload(
            "long, across",
            "two threads that free each other's blocks, 12 frames",
            synthetic("across.c", &[&thousands(2)]),
        ),
        workload(
            "long, 8 threads",
            "eight threads, stacks of about 12 frames",
            synthetic("threads.c", &[&thousands(2), "8"]),
        ),
        Workload { live: 1_000_000, ..many },
    ]
}

/// The workloads that differ in nothing but the number of their threads.
pub const ONE_THREAD: &str = "1 thread";
/// See [`ONE_THREAD`].
pub const EIGHT_THREADS: &str = "8 threads";

fn json() -> String {
    let items: Vec<String> = (0..200_000)
        .map(|n| {
            format!(
                "{{\"id\":{n},\"tags\":[\"a{}\",\"b\",\"c{}\"],\"v\":{n}.5,\"o\":{{\"k\":null}}}}",
                n % 97,
                n % 7
            )
        })
        .collect();
    format!("[{}]", items.join(",\n"))
}

fn xml(items: usize) -> String {
    let items: String = (0..items)
        .map(|n| {
            format!("<item id=\"{n}\"><name kind=\"k{}\">name {n}</name><v>{}</v></item>\n", n % 31, n * 3)
        })
        .collect();
    format!("<?xml version=\"1.0\"?>\n<all>\n{items}</all>\n")
}

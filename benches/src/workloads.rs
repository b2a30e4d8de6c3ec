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
}

fn workload(name: &'static str, what: &'static str, argv: Vec<OsString>, stdin: PathBuf) -> Workload {
    Workload { name, what, argv, env: Vec::new(), stdin }
}

fn words(all: &[&str]) -> Vec<OsString> {
    all.iter().map(OsString::from).collect()
}

fn write(dir: &Path, name: &str, text: &str) -> std::io::Result<PathBuf> {
    let path = dir.join(name);
    std::fs::write(&path, text)?;
    Ok(path)
}

fn synthetic(file: &str, thousands: &str) -> Vec<OsString> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(file);
    vec![programs::executable_of(&source).into(), thousands.into()]
}

/// All workloads; their inputs are written into `dir`.
///
/// # Errors
/// When `dir` can't be written, or gcc can't be started.
pub fn all(dir: &Path) -> std::io::Result<Vec<Workload>> {
    let nothing = PathBuf::from("/dev/null");
    let script = write(dir, "work.py", include_str!("inputs/work.py"))?;
    let source = write(dir, "x.cc", include_str!("inputs/x.cc"))?;
    let sql = write(dir, "work.sql", include_str!("inputs/work.sql"))?;
    let json = write(dir, "work.json", &json())?;
    let xml = write(dir, "work.xml", &xml())?;

    let mut python =
        workload("python3", "json, re, dictionaries, PYTHONMALLOC=malloc", Vec::new(), nothing.clone());
    python.argv = vec!["/usr/bin/python3".into(), script.into()];
    python.env = vec![("PYTHONMALLOC", "malloc"), ("PYTHONHASHSEED", "0"), ("PYTHONDONTWRITEBYTECODE", "1")];

    // The compiler proper, since heaptrack doesn't follow gcc into it.
    let found = Command::new("gcc").arg("-print-prog-name=cc1plus").output()?;
    let cc1plus = String::from_utf8_lossy(&found.stdout).trim().to_owned();
    let mut compiler =
        words(&[&cc1plus, "-quiet", "-imultiarch", "x86_64-linux-gnu", "-D_GNU_SOURCE", "-O1", "-o"]);
    compiler.extend([dir.join("x.s").into(), source.into()]);

    let filter = "group_by(.tags[0]) | map({tag: .[0].tags[0], sum: (map(.v) | add), ids: map(.id)})";
    Ok(vec![
        python,
        workload("cc1plus", "g++ 12 -O1 of 60 lines of templates", compiler, nothing.clone()),
        workload(
            "sqlite3",
            "insert, index, join, update in memory",
            words(&["/usr/bin/sqlite3", "-batch", ":memory:"]),
            sql,
        ),
        workload("jq", "group 50,000 objects", words(&["/usr/bin/jq", "-c", filter]), json),
        workload(
            "xmllint",
            "parse and format 150,000 elements",
            words(&["/usr/bin/xmllint", "--format", "-"]),
            xml,
        ),
        workload(
            "shallow",
            "synthetic: one thread, one short stack",
            synthetic("shallow.c", "8000"),
            nothing.clone(),
        ),
        workload(
            "recursion",
            "synthetic: one thread, varied stacks of 40 frames",
            synthetic("recursion.c", "3000"),
            nothing.clone(),
        ),
        workload(
            "four threads",
            "synthetic: four threads, stacks of about ten frames",
            synthetic("four_threads.c", "1500"),
            nothing,
        ),
    ])
}

fn json() -> String {
    let items: Vec<String> = (0..50_000)
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

fn xml() -> String {
    let items: String = (0..50_000)
        .map(|n| {
            format!("<item id=\"{n}\"><name kind=\"k{}\">name {n}</name><v>{}</v></item>\n", n % 31, n * 3)
        })
        .collect();
    format!("<?xml version=\"1.0\"?>\n<all>\n{items}</all>\n")
}

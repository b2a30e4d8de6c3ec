//! Runs every relocation case of `filetests/`: a text file each, named after what it shows.
//!
//! `GRAPNEL_BLESS=1` writes what comes out now into the files; read the change before you commit it.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use grapnel_fuzz::case::Case;
use libtest_mimic::{Arguments, Failed, Trial};
use similar::TextDiff;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("filetests");
    match trials(&root) {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(error) => {
            eprintln!("{}: {error}", root.display());
            ExitCode::FAILURE
        }
    }
}

/// A trial for each `filetests/ISA/NAME.txt`.
fn trials(root: &Path) -> io::Result<Vec<Trial>> {
    let mut trials = Vec::new();
    for entry in fs::read_dir(root)? {
        let folder = entry?.path();
        if !folder.is_dir() {
            continue;
        }
        for file in fs::read_dir(folder)? {
            let path = file?.path();
            let name = path.with_extension("").strip_prefix(root).unwrap_or(&path).display().to_string();
            trials.push(Trial::test(name, move || run(&path)));
        }
    }
    Ok(trials)
}

fn run(path: &PathBuf) -> Result<(), Failed> {
    let expected = fs::read_to_string(path)?;
    let actual = expected.parse::<Case>()?.render();
    if actual == expected {
        return Ok(());
    }
    if env::var_os("GRAPNEL_BLESS").is_some() {
        return Ok(fs::write(path, actual)?);
    }
    let diff = TextDiff::from_lines(&expected, &actual);
    let diff = diff.unified_diff().header("expected", "actual").to_string();
    Err(format!("{}\n{diff}set GRAPNEL_BLESS=1 to accept it", path.display()).into())
}

//! `grapnel import`: another profiler's file as a trace.

use crate::opened::{name_of, say, text_of};
use crate::whole_file::to_file;
use clap::Args;
use flate2::read::MultiGzDecoder;
use grapnel_analysis::import::{ImportError, Imported, heaptrack};
use grapnel_analysis::report::words::{counted, harmless};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `grapnel import`.
#[derive(Args, Clone, Debug)]
pub(crate) struct ImportArgs {
    /// heaptrack's file, raw or interpreted, as it is or compressed by gzip or zstd
    file: PathBuf,
    /// The trace to write. It is replaced once all is written; - is standard output
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

/// Why there is no trace.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum ImportFailed {
    /// The file can't be opened.
    #[error("{path}: {error}")]
    Open {
        /// The file.
        path: String,
        /// Why not.
        error: io::Error,
    },
    /// It can't be imported.
    #[error("{path}: {error}")]
    Import {
        /// The file.
        path: String,
        /// Why not.
        error: ImportError,
    },
    /// The trace can't be written.
    #[error("{path}: {error}")]
    Write {
        /// The trace.
        path: String,
        /// Why not.
        error: io::Error,
    },
}

/// Imports a file. One that breaks off is imported up to there; the exit status is then 1.
///
/// # Errors
/// When it is no such file, or a file can't be read or written.
pub(crate) fn run(args: &ImportArgs) -> Result<ExitCode, ImportFailed> {
    let path = text_of(&args.file);
    let open = |error| ImportFailed::Open { path: path.clone(), error };
    let file = File::open(&args.file).map_err(open)?;
    let mut input = Some(unpacked(BufReader::with_capacity(1 << 18, file)).map_err(open)?);
    let (mut imported, mut failed) = (Imported::default(), None);
    let written = to_file(&args.output, |out| {
        let Some(input) = input.take() else { return Ok(()) };
        match heaptrack::import(input, out) {
            Ok(done) => imported = done,
            Err(ImportError::Write(grapnel_trace::Error::Io(error))) => return Err(error),
            Err(error) => {
                failed = Some(error);
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        Ok(())
    });
    if let Some(error) = failed {
        return Err(ImportFailed::Import { path, error });
    }
    written.map_err(|error| ImportFailed::Write { path: name_of(&args.output), error })?;
    let (allocations, frees) = (counted(imported.allocations, "allocation"), counted(imported.frees, "free"));
    say(&format!("{}: {allocations} and {frees}", name_of(&args.output)));
    Ok(match imported.damage {
        None => ExitCode::SUCCESS,
        Some(damage) => {
            say(&format!("warning: {path}: {}", harmless(&damage.to_string())));
            ExitCode::FAILURE
        }
    })
}

/// What the file's first bytes say that it is packed by, whatever its name.
fn unpacked(mut file: BufReader<File>) -> io::Result<Box<dyn BufRead>> {
    const GZIP: &[u8] = &[0x1f, 0x8b];
    const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
    let first = file.fill_buf()?;
    let wide = |packed: Box<dyn Read>| Box::new(BufReader::with_capacity(1 << 18, packed));
    Ok(if first.starts_with(GZIP) {
        wide(Box::new(MultiGzDecoder::new(file)))
    } else if first.starts_with(ZSTD) {
        wide(Box::new(zstd::Decoder::with_buffer(file)?))
    } else {
        Box::new(file)
    })
}

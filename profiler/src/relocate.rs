//! `grapnel relocate`: code for another address.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use clap::Args;
use grapnel_lines::{Answerer, BadRequest, Form, Request, number, serve};
use grapnel_relocator::{CodeAddr, Isa, WindowOptions, redirect};

/// Options of `grapnel relocate`.
#[derive(Args, Clone, Debug)]
pub(crate) struct RelocateArgs {
    /// Write for people: both codes side by side, or what is in the way and what to do about it
    #[arg(long)]
    explain: bool,
    /// The instruction set of HEX: x86_64, aarch64, a32 or t32
    #[arg(long, requires = "hex")]
    isa: Option<Isa>,
    /// The address of HEX
    #[arg(long, value_name = "ADDRESS", value_parser = parse_number, requires = "hex")]
    from: Option<u64>,
    /// The address that the code is moved to
    #[arg(long, value_name = "ADDRESS", value_parser = parse_number, requires = "hex")]
    to: Option<u64>,
    /// How many bytes a patch at --from takes [default: the ordinary redirect's: 5 on x86_64, 4 elsewhere]
    #[arg(long, value_name = "N", value_parser = parse_number, requires = "hex")]
    min_len: Option<u64>,
    /// The length of the function at --from [default: HEX is all its own, as far as it is needed]
    #[arg(long, value_name = "N", value_parser = parse_number, requires = "hex")]
    extent: Option<u64>,
    /// Padding behind the function may be overwritten
    #[arg(long, requires = "hex")]
    padding: bool,
    /// The window is not at a function's entry: only registers that the code ahead shows to be dead are free
    #[arg(long, requires = "hex")]
    no_entry: bool,
    /// Returns are checked by a shadow stack: each call returns to where it was made from
    #[arg(long, requires = "hex")]
    shadow_stack: bool,
    /// One request, instead of requests on standard input: the bytes at --from, past the window's end
    #[arg(value_name = "HEX", requires_all = ["isa", "from", "to"])]
    hex: Vec<String>,
}

/// Why the requests were not answered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum RelocateError {
    /// Reading or writing failed.
    #[error("standard input or output: {0}")]
    Io(io::Error),
    /// The options are no request.
    #[error(transparent)]
    Bad(#[from] BadRequest),
}

fn parse_number(text: &str) -> Result<u64, &'static str> {
    number(text).ok_or("not a whole number from 0 to 2^64-1, in decimal or behind 0x")
}

/// Answers the requests on standard input, or the one that the options make.
///
/// # Errors
/// When standard input can't be read or standard output can't be written, or the options are no request. A closed pipe
/// is no error.
pub(crate) fn run(args: &RelocateArgs) -> Result<ExitCode, RelocateError> {
    let stdout = io::stdout();
    let form = match args.explain {
        true => Form::Text { width: width(&stdout) },
        false => Form::Json,
    };
    if !args.hex.is_empty() {
        return one(args, form);
    }
    if io::stdin().is_terminal() {
        // Whoever typed nothing but the name would wait for ever.
        let _ = writeln!(io::stderr(), "grapnel: waiting for requests, a line of JSON each; see --help");
    }
    match serve(io::stdin().lock(), stdout.lock(), form) {
        Ok(tally) if tally.bad > 0 => Ok(ExitCode::FAILURE),
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) => quiet(error),
    }
}

/// `grapnel relocate | head` has seen enough.
fn quiet(error: io::Error) -> Result<ExitCode, RelocateError> {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        _ => Err(RelocateError::Io(error)),
    }
}

fn one(args: &RelocateArgs, form: Form) -> Result<ExitCode, RelocateError> {
    // clap saw to it that these three are there.
    let (Some(isa), Some(from), Some(to)) = (args.isa, args.from, args.to) else {
        return Ok(ExitCode::FAILURE);
    };
    let code: String = args.hex.iter().flat_map(|piece| piece.split_whitespace()).collect();
    let length = |value| usize::try_from(value).unwrap_or(usize::MAX);
    let options = WindowOptions {
        extent: args.extent.map(length),
        allow_padding: args.padding,
        entry: !args.no_entry,
        shadow_stack: args.shadow_stack,
    };
    let min_len = args.min_len.map_or_else(|| redirect::lengths(isa).near, length);
    let mut bytes = Vec::new();
    let request = Request::new(isa, (CodeAddr(from), CodeAddr(to)), &code, min_len, options, &mut bytes)?;
    let mut out = Vec::new();
    Answerer::new(form).request(&request, &mut out);
    let mut stdout = io::stdout().lock();
    match stdout.write_all(&out).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => quiet(error),
    }
}

/// Where there is no terminal, or one that doesn't tell its size.
const USUAL_WIDTH: usize = 80;

fn width(stdout: &io::Stdout) -> usize {
    let size = if stdout.is_terminal() { terminal_size::terminal_size_of(stdout) } else { None };
    size.map_or(USUAL_WIDTH, |(width, _)| usize::from(width.0))
}

//! `grapnel query`: figures of groups of blocks, with filters.

use crate::moment::{When, WhenError, when, window};
use crate::opened::{OpenError, reader_of, say, say_ending, text_of};
use crate::sizes::size;
use crate::symbols::{SymbolArgs, SymbolArgsError};
use clap::{Args, ValueEnum};
use grapnel_analysis::query::{By, Query, Sort, Unanswered, gather, json, text};
use grapnel_analysis::report::words::{duration, harmless};
use grapnel_analysis::suppressions::Pattern;
use grapnel_analysis::symbols::{FileStore, Symbols};
use std::io::{self, BufWriter};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `grapnel query`.
#[derive(Args, Clone, Debug)]
pub(crate) struct QueryArgs {
    /// The trace
    trace: PathBuf,
    /// What blocks are grouped by [default: nothing, or the groups of --group]
    #[arg(long, value_enum)]
    by: Option<Group>,
    /// Only what happened from here on: a number with s, ms, us or ns, or mark:NAME
    #[arg(long, value_name = "TIME", value_parser = when)]
    from: Option<When>,
    /// Only what happened until then
    #[arg(long, value_name = "TIME", value_parser = when)]
    to: Option<When>,
    /// Only blocks of at least this size
    #[arg(long, value_name = "SIZE", value_parser = size)]
    min_size: Option<u64>,
    /// Only blocks of at most this size
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_size: Option<u64>,
    /// Only blocks that a thread of this name or id got; may be given several times
    #[arg(long, value_name = "PATTERN")]
    thread: Vec<String>,
    /// Only blocks in whose stack a function, a source file or a module matches; if given several times, all must
    #[arg(long, value_name = "PATTERN")]
    keep: Vec<String>,
    /// No blocks in whose stack one matches; may be given several times
    #[arg(long, value_name = "PATTERN")]
    drop: Vec<String>,
    /// A group of blocks in whose stack one matches, and that are in no group before; may be given several times
    #[arg(long, value_name = "NAME=PATTERN", value_parser = group)]
    group: Vec<(String, String)>,
    /// What groups are sorted by
    #[arg(long, value_enum, default_value_t = Order::Allocated)]
    sort: Order,
    /// Groups to show, 0 for all [default: 20; in JSON all]
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// What to write: a table for people, JSON for programs
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    symbols: SymbolArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Group {
    /// The functions in the stack
    Function,
    /// The source files in the stack
    File,
    /// The program and libraries in the stack
    Module,
    /// The thread that got the block
    Thread,
    /// The block's size, by powers of two
    Size,
    /// How long the block lived, by powers of ten
    Lifetime,
    /// When something happened, in slices
    Time,
    /// malloc, calloc, realloc, aligned_alloc, new, new[]
    Source,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Bytes that were allocated
    Allocated,
    /// How many blocks were allocated
    Allocations,
    /// By how much the live bytes grew or shrank
    Grown,
    /// How many blocks were temporary
    Temporary,
    /// Bytes that reallocations copied
    Copied,
    /// Bytes held at the peak
    Peak,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum QueryError {
    /// The trace can't be read.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is nowhere to look for symbols.
    #[error(transparent)]
    Symbols(#[from] SymbolArgsError),
    /// There is no such moment.
    #[error(transparent)]
    When(#[from] WhenError),
    /// No block can be of these sizes.
    #[error("--max-size is less than --min-size: {most} and {least} bytes")]
    Sizes {
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// The trace has no answer.
    #[error("{path} can't be asked: {error}")]
    Unanswered {
        /// The trace.
        path: String,
        /// Why not.
        error: Unanswered,
    },
    /// The answer can't be written.
    #[error("the answer can't be written: {0}")]
    Write(io::Error),
}

fn group(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, pattern)) if !name.is_empty() && !pattern.is_empty() => {
            Ok((name.to_owned(), pattern.to_owned()))
        }
        _ => Err("it is not NAME=PATTERN".to_owned()),
    }
}

/// Answers a question.
///
/// # Errors
/// When the trace can't be read, or the answer can't be written. A closed pipe is no error.
pub(crate) fn run(args: &QueryArgs) -> Result<ExitCode, QueryError> {
    let search = args.symbols.search()?;
    if let (Some(least), Some(most)) = (args.min_size, args.max_size)
        && most < least
    {
        return Err(QueryError::Sizes { least, most });
    }
    let window = window(&args.trace, args.from.as_ref(), args.to.as_ref())?;
    let query = query_of(args, window);
    let (analysis, gathered) = gather(reader_of(&args.trace)?, &query)
        .map_err(|error| QueryError::Unanswered { path: text_of(&args.trace), error })?;
    say_ending(&args.trace, &analysis);
    if analysis.totals.duration_ns < *query.window.start() {
        let lasted = duration(analysis.totals.duration_ns);
        say(&format!("note: nothing happened from --from on: the recording lasted {lasted}"));
    }
    let store = FileStore::new();
    let mut symbols = Symbols::new(&store, search);
    let answer = gathered.answer(&analysis, &mut symbols);
    let out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let result = match args.format {
        Format::Text => text::write(out, &answer, &query, args.top.unwrap_or(20)),
        Format::Json => json::write(out, &answer, &query, args.top.unwrap_or(0)),
    };
    match result {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
        result => result.map_err(QueryError::Write)?,
    }
    for note in symbols.notes() {
        say(&format!("note: {}", harmless(&note)));
    }
    Ok(if analysis.ending.is_damage() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn query_of(args: &QueryArgs, window: RangeInclusive<u64>) -> Query {
    let by = match args.by {
        None if args.group.is_empty() => By::All,
        None => By::Pattern,
        Some(Group::Function) => By::Function,
        Some(Group::File) => By::File,
        Some(Group::Module) => By::Module,
        Some(Group::Thread) => By::Thread,
        Some(Group::Size) => By::Size,
        Some(Group::Lifetime) => By::Lifetime,
        Some(Group::Time) => By::Time,
        Some(Group::Source) => By::Source,
    };
    let sort = match args.sort {
        Order::Allocated => Sort::Allocated,
        Order::Allocations => Sort::Allocations,
        Order::Grown => Sort::Grown,
        Order::Temporary => Sort::Temporary,
        Order::Copied => Sort::Copied,
        Order::Peak => Sort::Peak,
    };
    let patterns = |texts: &[String]| texts.iter().map(|text| Pattern::new(text)).collect();
    Query {
        by,
        window,
        sizes: args.min_size.unwrap_or(0)..=args.max_size.unwrap_or(u64::MAX),
        threads: patterns(&args.thread),
        keep: patterns(&args.keep),
        drop: patterns(&args.drop),
        groups: args.group.iter().map(|(name, text)| (name.clone(), Pattern::new(text))).collect(),
        sort,
    }
}

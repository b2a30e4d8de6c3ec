//! The report as text.

use super::stack::StackPrinter;
use super::words::{counted, duration, folded, grouped, harmless, human_bytes, quoted, share};
use super::{cost, heaps, mappings, mismatches};
use crate::Analysis;
use crate::leaks;
use crate::sites::Site;
use crate::symbols::Symbols;
use crate::weight::{Errors, Sampling};
use anstyle::{AnsiColor, Style};
use grapnel_trace::Mark;
use grapnel_trace::event::{Exit, VIA_GOT};
use std::io::{self, Write};

/// How the report looks.
#[derive(Clone, Copy, Debug)]
pub struct TextOptions {
    /// Sites in each section; 0 for all.
    pub top: usize,
    /// Frames of each stack, beyond which its middle is left out; 0 for all.
    pub frames: usize,
    /// Columns to fold names to; `None` when nobody's eyes are limited.
    pub width: Option<usize>,
    /// With or without colours.
    pub palette: Palette,
}

impl Default for TextOptions {
    fn default() -> Self {
        Self { top: 10, frames: 16, width: None, palette: Palette::default() }
    }
}

/// The styles of the report. By default there are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Palette {
    pub(crate) title: Style,
    pub(crate) figure: Style,
    pub(crate) function: Style,
    pub(crate) faint: Style,
    pub(crate) warning: Style,
}

impl Palette {
    /// For terminals.
    pub fn colored() -> Self {
        Self {
            title: Style::new().bold().underline(),
            figure: Style::new().bold(),
            function: AnsiColor::Cyan.on_default(),
            faint: Style::new().dimmed(),
            warning: AnsiColor::Yellow.on_default(),
        }
    }
}

/// Writes the report.
///
/// # Errors
/// What writing gives.
pub fn write(
    mut out: impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    options: &TextOptions,
) -> io::Result<()> {
    header(&mut out, analysis, options)?;
    totals(&mut out, analysis, options)?;
    notes(&mut out, analysis, options)?;
    // Which blocks of a sample were temporary isn't known: what came between was not recorded.
    let known = |ranking: &Ranking| analysis.sampling.is_none() || !matches!(ranking, Ranking::Temporary);
    for ranking in Ranking::ALL.into_iter().filter(known) {
        section(&mut out, ranking, analysis, symbols, options)?;
    }
    leaks::text::section_of_report(&mut out, analysis, symbols, options)?;
    mismatches::section(&mut out, analysis, symbols, options)?;
    heaps::sections(&mut out, analysis, symbols, options)?;
    mappings::section(&mut out, analysis, symbols, options)?;
    symbol_notes(&mut out, symbols, options)?;
    out.flush()
}

fn header(out: &mut impl Write, analysis: &Analysis, options: &TextOptions) -> io::Result<()> {
    let process = &analysis.process;
    let arguments: Vec<_> = process.command.iter().map(|arg| String::from_utf8_lossy(arg)).collect();
    let command: Vec<_> = arguments.iter().map(|arg| quoted(arg)).collect();
    let title = options.palette.title;
    let command = command.join(" ");
    let command = options.width.map_or(command.as_str().into(), |width| folded(&command, width));
    writeln!(out, "{title}{command}{title:#}")?;
    let exit = exit_words(analysis);
    write!(out, "process {} with {}, {exit}", process.pid, counted(analysis.threads.into(), "thread"))?;
    write!(out, "; {}", duration(analysis.totals.duration_ns))?;
    // What was imported knows neither the date nor the machine.
    if process.started_unix_ns != 0 {
        write!(out, " from {}", date(process.started_unix_ns))?;
    }
    let recorder = String::from_utf8_lossy(&process.recorder);
    let machine = String::from_utf8_lossy(&process.machine);
    let grapnel = if process.machine.is_empty() { "" } else { "grapnel " };
    write!(out, "; recorded by {grapnel}{}", harmless(&recorder))?;
    if !process.machine.is_empty() {
        write!(out, " on {}", harmless(&machine))?;
    }
    writeln!(out)?;
    writeln!(out)
}

/// Moments shown in full; of more, the last.
const MOMENTS: usize = 20;

fn marks(out: &mut impl Write, analysis: &Analysis, options: &TextOptions) -> io::Result<()> {
    let faint = options.palette.faint;
    let hidden = analysis.marks.len().saturating_sub(MOMENTS);
    if hidden > 0 {
        writeln!(out, "  {faint}and {} before{faint:#}", counted(hidden as u64, "mark"))?;
    }
    for moment in &analysis.marks[hidden..] {
        let name = moment.harmless_name();
        let name = options
            .width
            .map_or(name.as_str().into(), |width| folded(&name, width.saturating_sub(30).max(20)));
        writeln!(out, "  {:<12}{:>12}   {name}", "mark", duration(moment.time_ns))?;
    }
    Ok(())
}

/// How a process ended, or the recording of one that went on; and how it began, if not with the process.
pub(crate) fn exit_words(analysis: &Analysis) -> String {
    let is_marked = |mark: &Mark| analysis.marks.iter().any(|moment| moment.mark == *mark);
    let (attached, detached) = (is_marked(&Mark::Attached), is_marked(&Mark::Detached));
    let began = if attached { "attached to while it ran, " } else { "" };
    let ended = match analysis.exit {
        Some(Exit::Code(code)) => format!("exited with status {code}"),
        Some(Exit::Signal(signal)) => format!("killed by signal {signal}"),
        None if detached => "detached from while it went on".into(),
        None => "how it ended is not known".into(),
    };
    format!("{began}{ended}")
}

/// A moment as text.
pub(crate) fn date(unix_ns: u64) -> String {
    let nanoseconds = i128::from(unix_ns);
    match jiff::Timestamp::from_nanosecond(nanoseconds) {
        Ok(timestamp) => timestamp.strftime("%Y-%m-%d %H:%M:%S UTC").to_string(),
        Err(_) => "an impossible date".into(),
    }
}

fn totals(out: &mut impl Write, analysis: &Analysis, options: &TextOptions) -> io::Result<()> {
    let totals = &analysis.totals;
    let figure = options.palette.figure;
    let mut row = |name: &str, value: &str, rest: String| {
        writeln!(out, "  {name:<12}{figure}{value:>12}{figure:#}   {rest}")
    };
    let given_out = totals.allocations.saturating_add(totals.reallocations);
    let errors = analysis.sampling.map(|sampling| sampling.errors);
    let give_or_take = |of: fn(&Errors) -> f64| give_or_take(errors.as_ref(), of);
    row(
        "allocated",
        &human_bytes(totals.allocated_bytes),
        format!(
            "{}{} in {} and {}",
            counted(totals.allocated_bytes, "byte"),
            give_or_take(|errors| errors.allocated_bytes),
            counted(totals.allocations, "allocation"),
            counted(totals.reallocations, "reallocation")
        ),
    )?;
    row(
        "peak",
        &human_bytes(totals.peak_bytes),
        format!(
            "{}{}, first at {}",
            counted(totals.peak_bytes, "byte"),
            give_or_take(|errors| errors.peak_bytes),
            duration(totals.peak_time_ns)
        ),
    )?;
    row(
        "live at end",
        &human_bytes(totals.live_bytes),
        format!(
            "{}{} in {}",
            counted(totals.live_bytes, "byte"),
            give_or_take(|errors| errors.live_bytes),
            counted(totals.live_allocations, "block")
        ),
    )?;
    if analysis.knows_before() {
        row(
            "before",
            &human_bytes(totals.before_bytes),
            format!(
                "{} in {}, allocated before grapnel attached",
                counted(totals.before_bytes, "byte"),
                counted(totals.before_allocations, "block")
            ),
        )?;
    }
    row("freed", &grouped(totals.frees), if totals.frees == 1 { "block" } else { "blocks" }.into())?;
    match analysis.sampling {
        None => row(
            "temporary",
            &grouped(totals.temporary_allocations),
            format!(
                "freed before their thread allocated again: {} of all",
                share(totals.temporary_allocations, given_out)
            ),
        )?,
        Some(Sampling { mean, recorded, .. }) => row(
            "sample",
            &grouped(recorded),
            format!(
                "recorded, one in {} on average: all figures are estimates, ± their standard errors",
                human_bytes(mean)
            ),
        )?,
    }
    if let Some(meter) = &analysis.meter {
        let (figure, rest) = cost::of_the_program(meter);
        row("recording", &figure, rest)?;
        row("", "", cost::besides(meter))?;
    }
    marks(out, analysis, options)?;
    writeln!(out)
}

/// A standard error of bytes, of figures that have errors.
pub(super) fn give_or_take(errors: Option<&Errors>, of: fn(&Errors) -> f64) -> String {
    errors.map_or(String::new(), |errors| more_or_less(of(errors)))
}

/// A standard error of bytes.
fn more_or_less(error: f64) -> String {
    format!(" ± {}", human_bytes(error.ceil() as u64))
}

fn notes(out: &mut impl Write, analysis: &Analysis, options: &TextOptions) -> io::Result<()> {
    print_notes(out, &notes_of(analysis), options)
}

/// What is to be known before any figure is believed.
pub(crate) fn notes_of(analysis: &Analysis) -> Vec<String> {
    let totals = &analysis.totals;
    let lost = (totals.lost_events > 0).then(|| {
        format!(
            "{} could not be recorded: figures may be too low, and blocks whose free was lost look live",
            counted(totals.lost_events, "event")
        )
    });
    let inconsistent = (totals.inconsistent_events > 0).then(|| {
        format!(
            "{} contradicted earlier ones, and the later was believed",
            counted(totals.inconsistent_events, "event")
        )
    });
    let before_unknown = analysis.marks.iter().find_map(|moment| match &moment.mark {
        Mark::BeforeUnknown(why) => Some(format!(
            "what was allocated before grapnel attached isn't known, and in no figure but that of frees: {}",
            String::from_utf8_lossy(why)
        )),
        _ => None,
    });
    let is_without = analysis.stacks.without_caller();
    let without: u64 =
        analysis.sites.iter().filter(|site| is_without(site.stack)).map(|site| site.allocations).sum();
    let without_caller = (without > 0).then(|| {
        format!(
            "the stacks of {} ({}) end where no caller was found, by unwind tables or by frame pointers",
            counted(without, "allocation"),
            share(without, totals.allocations + totals.reallocations)
        )
    });
    let through_tables = analysis.process.recorder.ends_with(VIA_GOT).then(|| {
        "recorded through tables of addresses: calls within a library, through addresses from dlsym or an earlier \
         copy, and of static code are not seen (docs/via-got.md), and figures are wrong by them"
            .to_owned()
    });
    [analysis.ending.note(), through_tables, before_unknown, lost, inconsistent, without_caller]
        .into_iter()
        .flatten()
        .collect()
}

fn print_notes(out: &mut impl Write, notes: &[String], options: &TextOptions) -> io::Result<()> {
    let warning = options.palette.warning;
    for note in notes {
        writeln!(out, "{warning}note:{warning:#} {}", harmless(note))?;
    }
    if notes.is_empty() { Ok(()) } else { writeln!(out) }
}

/// Modules named in one note.
const NOTED_MODULES: usize = 4;

fn symbol_notes(out: &mut impl Write, symbols: &Symbols<'_>, options: &TextOptions) -> io::Result<()> {
    let mut notes = symbols.notes();
    let lacking: Vec<&str> = symbols.without_lines().collect();
    if let Some(first) = lacking.chunks(NOTED_MODULES).next() {
        let more = match lacking.len() - first.len() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        notes.push(format!(
            "no source lines for {}{more}: build them with -g, or install their debug symbols (on Debian, the \
             packages whose names end in -dbgsym or -dbg)",
            first.join(", ")
        ));
    }
    print_notes(out, &notes, options)
}

/// What the sites of a section are sorted by.
#[derive(Clone, Copy, Debug)]
enum Ranking {
    Peak,
    Live,
    Count,
    Temporary,
}

impl Ranking {
    const ALL: [Self; 4] = [Self::Peak, Self::Live, Self::Count, Self::Temporary];

    /// The standard error of a site's value, of those that are bytes.
    fn error(self, site: &Site) -> f64 {
        match self {
            Self::Peak => site.errors.peak_bytes,
            Self::Live => site.errors.live_bytes,
            Self::Count | Self::Temporary => 0.0,
        }
    }

    fn value(self, site: &Site) -> u64 {
        match self {
            Self::Peak => site.peak_bytes,
            Self::Live => site.live_bytes,
            Self::Count => site.allocations,
            Self::Temporary => site.temporary_allocations,
        }
    }

    fn whole(self, analysis: &Analysis) -> u64 {
        let totals = &analysis.totals;
        match self {
            Self::Peak => totals.peak_bytes,
            Self::Live => totals.live_bytes,
            Self::Count => totals.allocations.saturating_add(totals.reallocations),
            Self::Temporary => totals.temporary_allocations,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Peak => "Sites by what they held at the peak",
            Self::Live => "Sites by bytes still live at the end",
            Self::Count => "Sites by number of allocations",
            Self::Temporary => "Sites by temporary allocations",
        }
    }

    fn is_bytes(self) -> bool {
        matches!(self, Self::Peak | Self::Live)
    }

    /// The figures of a site that are not the one it is sorted by.
    fn context(self, site: &Site) -> String {
        if site.allocations == 0 {
            let before = format!(
                "{} in {} at the end",
                human_bytes(site.live_bytes),
                counted(site.live_allocations, "block")
            );
            return match self {
                Self::Peak => format!("{}; {before}", counted(site.peak_bytes, "byte")),
                _ => format!(
                    "{} in {}",
                    counted(site.live_bytes, "byte"),
                    counted(site.live_allocations, "block")
                ),
            };
        }
        let all = format!(
            "{} of {} in all",
            counted(site.allocations, "allocation"),
            human_bytes(site.allocated_bytes)
        );
        let live = format!("{} live at the end", counted(site.live_allocations, "block"));
        match self {
            Self::Peak => format!("{}; {all}", counted(site.peak_bytes, "byte")),
            Self::Live => {
                format!(
                    "{} in {}; {all}",
                    counted(site.live_bytes, "byte"),
                    counted(site.live_allocations, "block")
                )
            }
            Self::Count => format!("{} in all; {live}", human_bytes(site.allocated_bytes)),
            Self::Temporary => format!("of {all}"),
        }
    }
}

fn section(
    out: &mut impl Write,
    ranking: Ranking,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    options: &TextOptions,
) -> io::Result<()> {
    let Palette { title, figure, faint, .. } = options.palette;
    let mut sites: Vec<&Site> = analysis.sites.iter().filter(|site| ranking.value(site) > 0).collect();
    sites.sort_by_key(|site| core::cmp::Reverse(ranking.value(site)));
    let shown = if options.top == 0 { sites.len() } else { options.top.min(sites.len()) };
    writeln!(out, "{title}{}{title:#}", ranking.title())?;
    if sites.is_empty() {
        writeln!(out, "  none")?;
    }
    let mut printer = StackPrinter { analysis, symbols, options };
    for (rank, site) in sites[..shown].iter().enumerate() {
        let value = ranking.value(site);
        let mut text = if ranking.is_bytes() { human_bytes(value) } else { grouped(value) };
        if ranking.is_bytes() && analysis.sampling.is_some() {
            text.push_str(&more_or_less(ranking.error(site)));
        }
        let share = share(value, ranking.whole(analysis));
        let context = ranking.context(site);
        writeln!(out, "{:>3}. {figure}{text}{figure:#}  {share}  {faint}({context}){faint:#}", rank + 1)?;
        printer.print(out, site.stack)?;
    }
    if shown < sites.len() {
        let value: u64 = sites[shown..].iter().fold(0, |sum, site| sum.saturating_add(ranking.value(site)));
        let text = if ranking.is_bytes() { human_bytes(value) } else { grouped(value) };
        let rest = counted((sites.len() - shown) as u64, "more site");
        writeln!(out, "     {faint}and {rest} with {text} together; --top N shows more{faint:#}")?;
    }
    writeln!(out)
}

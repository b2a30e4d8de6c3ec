//! The thread that reads the trace, and makes views of it when it is asked.

use super::Message;
use super::bases::{Base, Pace};
use super::names::clean;
use super::trend::Trend;
use super::view::{
    Ask, Drill, Figures, Frame, Level, MOST_LEVELS, MOST_ROWS, Order, ROW_FRAMES, Row, State, View,
};
use grapnel_analysis::following::{Following, Step};
use grapnel_analysis::report::words::quoted;
use grapnel_analysis::sites::Site;
use grapnel_analysis::{Ending, Totals};
use grapnel_trace::event::Exit;
use grapnel_trace::growing::Growing;
use grapnel_trace::reader::Reader;
use std::collections::HashMap;
use std::fs::File;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime};

/// How often a trace that has been read is looked at for more. It is written about three times in a second.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A trace that hasn't grown for this long may not grow any more.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the feed is asked for, or told.
#[derive(Debug)]
pub(super) enum Told {
    /// A view.
    Look(Ask),
    /// Growth is to be counted from now on, or from the mark of this name, which will come in the trace.
    CountFrom(String, When),
    /// Growth is to be counted from the recording's beginning.
    CountFromStart,
    /// Nobody records any more.
    Abandoned,
}

/// When a moment is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    Now,
    AtItsMark,
}

/// A trace that is read as it grows.
#[derive(Debug)]
pub(super) struct Feed {
    following: Following<File>,
    file: File,
    /// Whether somebody is known to write to it.
    recorded: bool,
    /// Whether all was read that there was at some time.
    caught_up: bool,
    over: Option<String>,
    base: Base,
    base_name: String,
    /// Growth is to be counted from this mark, once it comes.
    awaited: Option<String>,
    marks: usize,
    pace: Pace,
    trend: Trend,
    grown: Instant,
    offset: u64,
}

impl Feed {
    /// `recorded`: somebody is known to write to it.
    pub(super) fn new(reader: Reader<Growing<File>>, file: File, recorded: bool) -> Self {
        let age = file.metadata().ok().and_then(|facts| facts.modified().ok()?.elapsed().ok());
        let now = Instant::now();
        Self {
            following: Following::new(reader),
            file,
            recorded,
            caught_up: false,
            over: None,
            base: Base::default(),
            base_name: FROM_START.into(),
            awaited: None,
            marks: 0,
            pace: Pace::default(),
            trend: Trend::default(),
            grown: age.and_then(|age| now.checked_sub(age)).unwrap_or(now),
            offset: 0,
        }
    }

    /// Reads all that there is now, and counts growth from the recording's beginning.
    pub(super) fn read_all(&mut self) {
        while self.step() {}
        self.count_from_start();
    }

    /// Reads, and answers, until nobody asks any more. A thread's work.
    pub(super) fn run(mut self, orders: &Receiver<Told>, send: &Sender<Message>) {
        loop {
            let more = self.step();
            // Who reads without a pause still answers.
            let patience = if more { Duration::ZERO } else { LOOK_EVERY };
            match orders.recv_timeout(patience) {
                Ok(Told::Look(ask)) => {
                    if send.send(Message::View(Box::new(self.view(ask)))).is_err() {
                        return;
                    }
                }
                Ok(Told::CountFrom(name, when)) => self.count_from(name, when),
                Ok(Told::CountFromStart) => self.count_from_start(),
                Ok(Told::Abandoned) => self.recorded = false,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn count_from(&mut self, name: String, when: When) {
        // It may have come already.
        match when {
            When::AtItsMark if !self.following.marks().iter().any(|mark| mark.name() == name) => {
                self.awaited = Some(name);
            }
            _ => self.count_from_here(name),
        }
    }

    fn count_from_start(&mut self) {
        (self.base, self.base_name, self.awaited) = (Base::default(), FROM_START.into(), None);
    }

    fn count_from_here(&mut self, name: String) {
        let (totals, _) = self.following.totals();
        self.base = Base::new(self.now_ns(), &self.following.sites(), &totals);
        self.base_name = name;
        self.awaited = None;
    }

    /// Reads on; false if there is no more now.
    fn step(&mut self) -> bool {
        if self.over.is_some() {
            return false;
        }
        match self.following.step() {
            Step::Read => self.after_step(),
            Step::CaughtUp => {
                self.after_step();
                self.look_at_file();
                if !self.caught_up && self.over.is_none() {
                    self.caught_up = true;
                    if self.is_fresh() {
                        self.count_from_here("grapnel top began".into());
                    }
                }
                return false;
            }
            Step::Over(ending) => {
                self.after_step();
                self.over = Some(self.reason(&ending));
                return false;
            }
        }
        true
    }

    fn reason(&self, ending: &Ending) -> String {
        match (ending, self.following.end().and_then(|end| end.exit)) {
            (Ending::InOrder, Some(Exit::Code(code))) => format!("ended: exited with status {code}"),
            (Ending::InOrder, Some(Exit::Signal(signal))) => format!("ended: killed by signal {signal}"),
            (Ending::InOrder, None) => "ended".into(),
            (ending, _) => clean(&ending.note().unwrap_or_default()),
        }
    }

    fn after_step(&mut self) {
        if self.following.offset() != self.offset {
            self.offset = self.following.offset();
            if self.caught_up {
                self.grown = Instant::now();
            }
        }
        let marks = &self.following.marks()[self.marks..];
        let has_come =
            self.awaited.as_ref().is_some_and(|name| marks.iter().any(|mark| mark.name() == **name));
        self.marks += marks.len();
        if has_come && let Some(name) = self.awaited.take() {
            self.count_from_here(name);
        }
        let now = self.now_ns();
        self.trend.push(now, self.following.totals().0.live_bytes);
        if self.pace.is_due(now) {
            let (totals, _) = self.following.totals();
            self.pace.advance(Base::new(now, &self.following.sites(), &totals));
        }
    }

    /// A file that somebody cut or wrote anew has nothing more for who has read it.
    fn look_at_file(&mut self) {
        if self.file.metadata().is_ok_and(|facts| facts.is_file() && facts.len() < self.offset) {
            self.over = Some("the trace was cut off or begun anew; start grapnel top again".into());
        }
    }

    /// Whether the trace may still grow, as far as that is known.
    fn is_fresh(&self) -> bool {
        self.over.is_none() && (self.recorded || self.grown.elapsed() < PATIENCE)
    }

    /// The time of what is shown, since the recording began.
    fn now_ns(&self) -> u64 {
        let last = self.following.time_ns();
        if let Some(end) = self.following.end() {
            return end.duration_ns.max(last);
        }
        let started = self.following.process().started_unix_ns;
        if !self.caught_up || !self.is_fresh() || started == 0 {
            return last;
        }
        // Nothing may happen for a while, and that takes time as well.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        (u64::try_from(now.as_nanos()).unwrap_or(last)).saturating_sub(started).max(last)
    }

    fn state(&self) -> State {
        if let Some(reason) = &self.over {
            return State::Over(reason.clone());
        }
        if !self.caught_up {
            let len = self.file.metadata().map_or(0, |facts| facts.len());
            return State::Reading((self.offset * 100 / len.max(1)).min(100) as u8);
        }
        if self.is_fresh() { State::Recording } else { State::Quiet(self.grown.elapsed().as_secs()) }
    }

    /// What there is to show.
    pub(super) fn view(&mut self, ask: Ask) -> View {
        let start = Instant::now();
        let now = self.now_ns();
        let (totals, sampling) = self.following.totals();
        let sites = self.following.sites();
        let first = self.following.first_equal();
        let first_of = |stack: u32| first.as_ref().map_or(stack, |first| first[stack as usize]);
        let mut rows = self.rows(&sites, &first_of, now);
        let count = rows.len();
        let drill = ask.stack.map(|stack| self.drill(stack, &sites, &rows, &first_of));
        sort(&mut rows, ask.order);
        for row in &mut rows {
            row.frames = self.frames(row.stack).take(ROW_FRAMES).collect();
        }
        let (bytes_per_s, calls_per_s) = self.pace.of_all(&totals, now);
        let growth = self.base.growth_of_all(&totals);
        let Totals { live_bytes, live_allocations: live_blocks, .. } = totals;
        let process = self.following.process();
        let arguments = process.command.iter().take(64).map(|argument| String::from_utf8_lossy(argument));
        let command: Vec<_> = arguments.map(|argument| clean(&quoted(&argument))).collect();
        let pid = process.pid;
        View {
            state: self.state(),
            pid,
            command: command.join(" "),
            time_ns: now,
            totals,
            sampled: sampling.is_some(),
            all: Figures { live_bytes, live_blocks, growth, bytes_per_s, calls_per_s },
            trend: self.trend.points().to_vec(),
            base: (self.base_name.clone(), self.base.time_ns),
            order: ask.order,
            rows,
            sites: count,
            drill,
            modules: self.following.modules(),
            next_mark: self.next_mark(),
            cost: start.elapsed(),
        }
    }

    /// A row for each stack, in no order.
    fn rows(&self, sites: &[Site], first_of: &impl Fn(u32) -> u32, now: u64) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::with_capacity(sites.len());
        let mut place_of: HashMap<u32, usize> = HashMap::with_capacity(sites.len());
        for (place, site) in sites.iter().enumerate() {
            let stack = first_of(site.stack);
            let at = *place_of.entry(stack).or_insert(rows.len());
            if at == rows.len() {
                rows.push(Row { stack, ..Row::default() });
            }
            let figures = &mut rows[at].figures;
            let (bytes_per_s, calls_per_s) = self.pace.of_site(place, site, now);
            figures.live_bytes = figures.live_bytes.wrapping_add(site.live_bytes);
            figures.live_blocks = figures.live_blocks.wrapping_add(site.live_allocations);
            figures.growth = figures.growth.wrapping_add(self.base.growth(place, site));
            figures.bytes_per_s += bytes_per_s;
            figures.calls_per_s += calls_per_s;
        }
        rows
    }

    /// The frames of a stack, from the innermost on.
    fn frames(&self, stack: u32) -> impl Iterator<Item = Frame> {
        let stacks = self.following.stacks();
        let frame = move |id: u32| stacks.node(id).map(|node| Frame { id, node });
        std::iter::successors(frame(stack), move |before| frame(before.node.parent))
    }

    /// The stack, with what goes through each of its frames.
    fn drill(&self, stack: u32, sites: &[Site], rows: &[Row], first_of: &impl Fn(u32) -> u32) -> Drill {
        let mut row = rows.iter().find(|row| row.stack == stack).cloned().unwrap_or_default();
        row.stack = stack;
        let stacks = self.following.stacks();
        // Parents have smaller numbers than what they called, so that one pass from the end carries everything to the roots.
        let mut through = vec![(0_u64, 0_i64); stacks.len() + 1];
        for (place, site) in sites.iter().enumerate() {
            let sum = &mut through[first_of(site.stack) as usize];
            sum.0 = sum.0.wrapping_add(site.live_bytes);
            sum.1 = sum.1.wrapping_add(self.base.growth(place, site));
        }
        for id in (1..through.len()).rev() {
            let (bytes, growth) = through[id];
            if let Some(node) = stacks.node(id as u32) {
                let parent = &mut through[first_of(node.parent) as usize];
                parent.0 = parent.0.wrapping_add(bytes);
                parent.1 = parent.1.wrapping_add(growth);
            }
        }
        let mut guess = false;
        let level = |frame: Frame| {
            let (through, growth) = through.get(first_of(frame.id) as usize).copied().unwrap_or_default();
            let was_guess = std::mem::replace(&mut guess, frame.node.caller_is_guess());
            Level { frame, guess: was_guess, through, growth }
        };
        let levels: Vec<Level> = self.frames(stack).take(MOST_LEVELS).map(level).collect();
        let more = self.frames(stack).skip(MOST_LEVELS).count();
        Drill { row, levels, more }
    }

    fn next_mark(&self) -> u32 {
        let number = |name: &str| name.strip_prefix(MARK_PREFIX)?.parse::<u32>().ok();
        let last = self.following.marks().iter().filter_map(|mark| number(&mark.name())).max();
        last.map_or(1, |last| last.saturating_add(1))
    }
}

/// What growth is counted from when nothing else was said.
const FROM_START: &str = "the recording began";
/// Marks that are made from here are called so, with a number behind.
pub(super) const MARK_PREFIX: &str = "top-";

/// The first of them in this order, and no more than are shown.
fn sort(rows: &mut Vec<Row>, order: Order) {
    let key = |row: &Row| match order {
        Order::Growth => row.figures.growth as f64,
        Order::Live => row.figures.live_bytes as f64,
        Order::Blocks => row.figures.live_blocks as f64,
        Order::Bytes => row.figures.bytes_per_s,
        Order::Calls => row.figures.calls_per_s,
    };
    // By what is live where nothing else tells, and in the order of the stacks: rows that are equal don't dance.
    let compare = |a: &Row, b: &Row| {
        let live = || b.figures.live_bytes.cmp(&a.figures.live_bytes);
        key(b).total_cmp(&key(a)).then_with(live).then(a.stack.cmp(&b.stack))
    };
    if rows.len() > MOST_ROWS {
        rows.select_nth_unstable_by(MOST_ROWS, compare);
        rows.truncate(MOST_ROWS);
    }
    rows.sort_unstable_by(compare);
}

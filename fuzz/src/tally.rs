//! The table that a run over many windows ends with.

use std::{collections::BTreeMap, fmt};

use grapnel_arch::t32;
use grapnel_relocator::{CodeAddr, Error, Isa, Reach, Relocated, RelocationPlan, Window};

use crate::{
    case::Case,
    oracle::{Subject, Verdict, decoded},
};

/// How many of something there were, and some of them.
#[derive(Clone, Default, Debug)]
pub struct Counted {
    /// How many.
    pub count: u64,
    /// The first ones, as text.
    pub examples: Vec<String>,
}

/// Why a window is not judged, if the emulator itself has an error.
pub const EMULATOR_FAILS: &str = "the emulator fails";

/// How many examples are kept.
const EXAMPLES: usize = 500;

impl Counted {
    pub(crate) fn add(&mut self, example: impl FnOnce() -> String) {
        if self.examples.len() < EXAMPLES {
            self.examples.push(example());
        }
        self.count += 1;
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.examples.extend(other.examples);
        self.examples.truncate(EXAMPLES);
        self.count += other.count;
    }
}

/// The first example, or with `{:#}` all that were kept, a line each.
impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = if f.alternate() { EXAMPLES } else { 1 };
        self.examples.iter().take(shown).try_for_each(|example| writeln!(f, "    {example}"))
    }
}

/// How often a register is changed beyond what the original does, by what shows that it may be.
#[derive(Clone, Copy, Default, Debug)]
pub struct Clobbered {
    /// The code ahead overwrites it, or leaves by a call or a return that does not pass it on.
    pub by_code: u64,
    /// It holds nothing at a function's entry.
    pub by_entry: u64,
}

/// Counts of what became of windows.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// Functions that have no room for the redirect, padding or not. They are not in `windows`.
    pub too_short: u64,
    /// All windows.
    pub windows: u64,
    /// Those that were relocated.
    pub accepted: u64,
    /// Those of them that the semantic oracle ran from every state, and found to do the same.
    pub ran: u64,
    /// Those that were not, by the kind of the error.
    pub refused: BTreeMap<&'static str, Counted>,
    /// Those that the semantic oracle could not tell, by its reason. The decode oracle judged them.
    pub unjudged: BTreeMap<&'static str, Counted>,
    /// The registers changed, by name.
    pub clobbers: BTreeMap<&'static str, Clobbered>,
    /// Those with an instruction that another decoder does not know.
    pub unknown: u64,
    /// Those that change a register, with an instruction ahead that another decoder does not know: nobody else shows that
    /// the register holds nothing.
    pub unseen: u64,
    /// Those with an instruction that another decoder sees otherwise, by decoder and instruction.
    pub disputed: BTreeMap<String, Counted>,
    /// Those that an oracle found to differ: the case as a file, and the difference.
    pub mismatches: Vec<(String, String)>,
}

/// The judges, and the emulator that they share.
pub struct Judges {
    /// Decoders of other descent.
    #[cfg(feature = "capstone")]
    pub second: crate::oracle::second::Second,
    #[cfg(feature = "unicorn")]
    machine: crate::oracle::semantic::Machine,
    /// How many states each window is run from.
    pub states: u64,
}

impl Judges {
    /// Starts what the judges need.
    ///
    /// # Errors
    ///
    /// If there is no emulator.
    pub fn new(states: u64) -> Result<Self, String> {
        Ok(Self {
            #[cfg(feature = "capstone")]
            second: crate::oracle::second::Second::new().map_err(|error| error.to_string())?,
            #[cfg(feature = "unicorn")]
            machine: crate::oracle::semantic::Machine::new().map_err(|error| error.to_string())?,
            states,
        })
    }

    /// What all judges say: the first mismatch, or the first that one can't tell.
    pub fn judge(&mut self, subject: &Subject<'_>, seed: u64) -> Verdict {
        let decoded = decoded::judge(subject);
        if decoded != Verdict::Same {
            return decoded;
        }
        self.run(subject, seed)
    }

    #[cfg(feature = "unicorn")]
    fn run(&mut self, subject: &Subject<'_>, seed: u64) -> Verdict {
        let mut unjudged = None;
        for state in 0..self.states {
            match self.machine.judge(subject, seed.wrapping_add(state)) {
                Ok(Verdict::Same) => {}
                Ok(Verdict::Unjudged(reason)) => unjudged = Some(reason),
                Ok(mismatch) => return mismatch,
                Err(_) => unjudged = Some(EMULATOR_FAILS),
            }
        }
        unjudged.map_or(Verdict::Same, Verdict::Unjudged)
    }

    #[cfg(not(feature = "unicorn"))]
    fn run(&mut self, _subject: &Subject<'_>, _seed: u64) -> Verdict {
        Verdict::Unjudged("built without the semantic oracle")
    }
}

impl Tally {
    /// Relocates a case and judges the result.
    pub fn add(&mut self, case: &Case, judges: &mut Judges, seed: u64) {
        self.windows += 1;
        let (window, relocated) = match case.relocate() {
            Ok(relocated) => relocated,
            Err(error) => return self.refused.entry(error.kind()).or_default().add(|| error.to_string()),
        };
        self.accepted += 1;
        self.clobbered(case, &relocated);
        if let Err(difference) = promises_hold(&window, case) {
            return self.mismatches.push((case.render(), difference));
        }
        self.dispute(&window, case, judges);
        let subject = Subject { case, window: &window, relocated: &relocated };
        #[cfg(feature = "capstone")]
        match judges.second.judge_changed(&subject) {
            Verdict::Same => {}
            Verdict::Unjudged(_) => self.unseen += 1,
            Verdict::Mismatch(difference) => return self.mismatches.push((case.render(), difference)),
        }
        match judges.judge(&subject, seed) {
            Verdict::Same => self.ran += 1,
            Verdict::Unjudged(reason) => {
                let example = || first_lines(case, &window);
                self.unjudged.entry(reason).or_default().add(example);
            }
            Verdict::Mismatch(difference) => self.mismatches.push((case.render(), difference)),
        }
    }

    fn clobbered(&mut self, case: &Case, relocated: &Relocated) {
        if relocated.clobbers().is_empty() {
            return;
        }
        // What is dead without the entry's help is dead by the code.
        let mut within = case.clone();
        within.options.entry = false;
        let by_code = within.relocate().map(|(_, relocated)| relocated.clobbers());
        for (number, name) in relocated.clobbers().numbers().zip(relocated.clobbers().names()) {
            let clobbered = self.clobbers.entry(name).or_default();
            match &by_code {
                Ok(by_code) if by_code.contains(number) => clobbered.by_code += 1,
                _ => clobbered.by_entry += 1,
            }
        }
    }

    #[cfg(feature = "capstone")]
    fn dispute(&mut self, window: &Window, case: &Case, judges: &Judges) {
        use crate::oracle::second::Opinion;

        match judges.second.opinion(case.isa, case.from, &case.source[..window.code_len()]) {
            Opinion::Agrees => {}
            Opinion::Unknown => self.unknown += 1,
            Opinion::Differs { on, how } => self.disputed.entry(on).or_default().add(|| how),
        }
    }

    #[cfg(not(feature = "capstone"))]
    fn dispute(&mut self, _window: &Window, _case: &Case, _judges: &Judges) {}

    /// Takes the counts of another one.
    pub fn merge(&mut self, other: Self) {
        self.too_short += other.too_short;
        self.windows += other.windows;
        self.accepted += other.accepted;
        self.ran += other.ran;
        self.unknown += other.unknown;
        self.unseen += other.unseen;
        for (kind, counted) in other.refused {
            self.refused.entry(kind).or_default().merge(counted);
        }
        for (reason, counted) in other.unjudged {
            self.unjudged.entry(reason).or_default().merge(counted);
        }
        for (name, clobbered) in other.clobbers {
            let all = self.clobbers.entry(name).or_default();
            all.by_code += clobbered.by_code;
            all.by_entry += clobbered.by_entry;
        }
        for (on, counted) in other.disputed {
            self.disputed.entry(on).or_default().merge(counted);
        }
        self.mismatches.extend(other.mismatches);
    }
}

/// The window's instructions in one line.
fn first_lines(case: &Case, window: &Window) -> String {
    let lines = grapnel_arch::listing(case.isa, case.from, &case.source[..window.code_len()]);
    let texts: Vec<_> = lines.into_iter().map(|line| line.text).collect();
    format!("{} at {}", texts.join("; "), case.from)
}

/// What a plan promises before a destination is known, held against what comes out for one.
fn promises_hold(window: &Window, case: &Case) -> Result<(), String> {
    let plan = RelocationPlan::new(window).map_err(|error| error.to_string())?;
    let emitted = plan.emit(case.to).map_err(|error| error.to_string())?;
    if emitted.bytes().len() > plan.max_len() {
        return Err(format!("{} bytes, and at most {} promised", emitted.bytes().len(), plan.max_len()));
    }
    if plan.resumes() != emitted.resumes() {
        return Err("the plan and its code differ on whether it resumes".to_owned());
    }
    map_holds(window, case, &emitted)?;
    let reach = plan.required_reach();
    if reach.is_empty() && is_at_end(case.from) {
        return Ok(());
    }
    let edges = [reach.lo, reach.hi].map(|to| plan.emit(inside(case.isa, to, reach)));
    match edges.iter().flatten().count() {
        2 => Ok(()),
        _ if edges.iter().all(|edge| matches!(edge, Ok(_) | Err(Error::Overlaps { .. }))) => Ok(()),
        _ => Err(format!("the plan can't be emitted at the edges of its reach {reach:x?}")),
    }
}

/// A branch from here may go round the end of the 64-bit address space, which no reach does.
const fn is_at_end(from: CodeAddr) -> bool {
    const FARTHEST: u64 = 4 << 30;
    from.0.wrapping_add(FARTHEST) < 2 * FARTHEST
}

/// The edge of a reach, where code of an instruction set may stand.
fn inside(isa: Isa, edge: CodeAddr, reach: Reach) -> CodeAddr {
    if isa == Isa::X86_64 {
        return edge;
    }
    let down = CodeAddr(edge.0 & !3);
    if reach.contains(down) { down } else { down.add(4) }
}

/// The map has every instruction of the window, in order, and both directions say the same. In T32 the members of an IT
/// block may belong to its IT: a thread between them is in a state that another place need not have.
fn map_holds(window: &Window, case: &Case, relocated: &Relocated) -> Result<(), String> {
    let map = relocated.map();
    let members = if case.isa == Isa::T32 { members(window, case) } else { Vec::new() };
    let mut offsets: Vec<usize> = window.offsets().collect();
    if relocated.resumes() {
        offsets.push(window.len());
    }
    let pairs: Vec<_> = map.iter().collect();
    let mapped = |offset| pairs.iter().any(|&(from, _)| from == offset);
    let missing = offsets.iter().any(|&offset| !mapped(offset) && !members.contains(&offset));
    if missing || pairs.iter().any(|(from, _)| !offsets.contains(from)) {
        return Err(format!("the map has {pairs:?} for the instructions at {offsets:?}"));
    }
    if pairs.first() != Some(&(0, 0)) || !pairs.is_sorted() {
        return Err(format!("the map is out of order: {pairs:?}"));
    }
    for &(from, to) in &pairs {
        let back = map.to_original(to).map(|origin| origin.offset);
        // Instructions without code of their own share the place of the next.
        let shared = back.is_some_and(|back| map.to_relocated(back) == Some(to));
        if map.to_relocated(from) != Some(to) || to < map.code_len() && !shared {
            return Err(format!("the map says {from} = {to}, and back {back:?}"));
        }
    }
    Ok(())
}

/// The offsets of the members of IT blocks.
fn members(window: &Window, case: &Case) -> Vec<usize> {
    let mut members = Vec::new();
    let (mut end, mut it) = (0, t32::It::OUTSIDE);
    for at in window.offsets() {
        if at != end {
            it = t32::It::OUTSIDE;
        }
        let Ok(inst) = t32::decode_within(case.from.add(at as u64), &case.source[at..], it) else { break };
        if it.is_inside() {
            members.push(at);
        }
        it = inst.next_it();
        end = at + inst.bytes().len();
    }
    members
}

/// The table, with an example of each reason; with `{:#}` all that were kept.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, count: u64| {
            let share = count as f64 * 100.0 / self.windows.max(1) as f64;
            writeln!(f, "{name:<50} {count:>10}  {share:>8.4} %")
        };
        if self.too_short > 0 {
            writeln!(f, "{:<50} {:>10}", "too short for the redirect", self.too_short)?;
        }
        row(f, "windows", self.windows)?;
        row(f, "accepted", self.accepted)?;
        row(f, "judged the same", self.ran)?;
        for (kind, counted) in &self.refused {
            row(f, &format!("refused: {kind}"), counted.count)?;
            fmt::Display::fmt(counted, f)?;
        }
        for (reason, counted) in &self.unjudged {
            row(f, &format!("not run: {reason}"), counted.count)?;
            fmt::Display::fmt(counted, f)?;
        }
        for (name, clobbered) in &self.clobbers {
            row(f, &format!("clobbered: {name}, dead by the code"), clobbered.by_code)?;
            row(f, &format!("clobbered: {name}, dead at the entry"), clobbered.by_entry)?;
        }
        if !self.clobbers.is_empty() {
            row(f, "clobbered, with code ahead unknown to another", self.unseen)?;
        }
        row(f, "unknown to another decoder", self.unknown)?;
        for (on, counted) in &self.disputed {
            row(f, &format!("disputed: {on}"), counted.count)?;
            write!(f, "{counted}")?;
        }
        row(f, "mismatches", self.mismatches.len() as u64)
    }
}

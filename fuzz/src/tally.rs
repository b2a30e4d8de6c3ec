//! The table that a run over many windows ends with.

use std::{collections::BTreeMap, fmt};

use grapnel_relocator::{Error, RelocationPlan, Window};

use crate::{
    case::Case,
    oracle::{Subject, Verdict, decoded},
};

/// Counts of what became of windows.
#[derive(Clone, Default, Debug)]
pub struct Tally {
    /// All windows.
    pub windows: u64,
    /// Those that were relocated.
    pub accepted: u64,
    /// Those that were not, by the kind of the error.
    pub refused: BTreeMap<&'static str, u64>,
    /// Those that the semantic oracle could not tell, by its reason. The decode oracle judged them.
    pub unjudged: BTreeMap<&'static str, u64>,
    /// Those with an instruction that the second decoder does not know.
    pub unknown: u64,
    /// Those with an instruction that the second decoder sees otherwise, and how.
    pub disputed: Vec<String>,
    /// Those that an oracle found to differ: the case as a file, and the difference.
    pub mismatches: Vec<(String, String)>,
}

/// The judges, and the emulator that they share.
pub struct Judges {
    #[cfg(feature = "capstone")]
    second: crate::oracle::second::Second,
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
                Err(_) => unjudged = Some("the emulator fails"),
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
            Err(error) => return self.refuse(&error),
        };
        self.accepted += 1;
        if let Err(difference) = reach_holds(&window, case) {
            return self.mismatches.push((case.render(), difference));
        }
        self.dispute(&window, case, judges);
        match judges.judge(&Subject { case, window: &window, relocated: &relocated }, seed) {
            Verdict::Same => {}
            Verdict::Unjudged(reason) => *self.unjudged.entry(reason).or_default() += 1,
            Verdict::Mismatch(difference) => self.mismatches.push((case.render(), difference)),
        }
    }

    #[cfg(feature = "capstone")]
    fn dispute(&mut self, window: &Window, case: &Case, judges: &Judges) {
        use crate::oracle::second::Opinion;

        match judges.second.opinion(case.from, &case.source[..window.code_len()]) {
            Opinion::Agrees => {}
            Opinion::Unknown => self.unknown += 1,
            Opinion::Differs(how) => self.disputed.push(how),
        }
    }

    #[cfg(not(feature = "capstone"))]
    fn dispute(&mut self, _window: &Window, _case: &Case, _judges: &Judges) {}

    fn refuse(&mut self, error: &Error) {
        *self.refused.entry(error.kind()).or_default() += 1;
    }
}

/// What a plan promises before a destination is known, held against what comes out for one.
fn reach_holds(window: &Window, case: &Case) -> Result<(), String> {
    let plan = RelocationPlan::new(window).map_err(|error| error.to_string())?;
    let emitted = plan.emit(case.to).map_err(|error| error.to_string())?;
    if emitted.bytes().len() > plan.max_len() {
        return Err(format!("{} bytes, and at most {} promised", emitted.bytes().len(), plan.max_len()));
    }
    if plan.resumes() != emitted.resumes() {
        return Err("the plan and its code differ on whether it resumes".to_owned());
    }
    let reach = plan.required_reach();
    let edges = [reach.lo, reach.hi].map(|to| plan.emit(to));
    match edges.iter().flatten().count() {
        2 => Ok(()),
        _ if edges.iter().all(|edge| matches!(edge, Ok(_) | Err(Error::Overlaps { .. }))) => Ok(()),
        _ => Err(format!("the plan can't be emitted at the edges of its reach {reach:x?}")),
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut row = |name: &str, count: u64| {
            let share = count as f64 * 100.0 / self.windows.max(1) as f64;
            writeln!(f, "{name:<50} {count:>10}  {share:>7.3} %")
        };
        row("windows", self.windows)?;
        row("accepted", self.accepted)?;
        for (kind, count) in &self.refused {
            row(&format!("refused: {kind}"), *count)?;
        }
        for (reason, count) in &self.unjudged {
            row(&format!("not run: {reason}"), *count)?;
        }
        row("unknown to the second decoder", self.unknown)?;
        row("disputed by the second decoder", self.disputed.len() as u64)?;
        row("mismatches", self.mismatches.len() as u64)
    }
}

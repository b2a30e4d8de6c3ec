//! Runs the original at its address and the relocated code at its own, and compares what they did.
//!
//! Both start from the same random registers, flags and memory. Memory is what a hash says of its address, and exists
//! wherever it is touched. What is compared: every access in order, with the values written; every call with the
//! registers it was made with; every request to the kernel; the address left for, with the instruction set that it is
//! in; and the registers at that point. Return addresses are compared through the PC map. A callee returns at once and
//! changes the registers that only callees may, so that what follows a call is compared as well.
//!
//! The same is done from each place where the map says that nothing of an instruction was executed yet: a thread found
//! in one of them can be moved to the other.
//!
//! Two things are allowed to relocated code. The registers that it says it changes may differ where the window is left;
//! whether anything reads them there is looked up in the bytes ahead. And it may access the stack between where the stack pointer was
//! at the start of the window's instruction and where it is now, which on x86-64 must be beyond the red zone.

mod compare;
mod engine;
mod hooks;
mod inspect;
mod memory;
mod pair;
mod run;
mod unjudged;
mod world;

use std::collections::HashMap;

use fastrand::Rng;
use grapnel_relocator::Isa;
use unicorn_engine::unicorn_const::uc_error;

pub use self::pair::Pair;
use self::{
    engine::Engine,
    run::{Start, run},
};
use super::{Subject, Verdict, state::State};

/// Emulators, one for each instruction set that was asked for.
#[derive(Default)]
pub struct Machine {
    engines: HashMap<&'static str, Engine>,
}

/// The emulator refused to be set up or used.
#[derive(Debug, thiserror::Error)]
#[error("the emulator failed: {0:?}")]
pub struct EngineError(uc_error);

impl From<uc_error> for EngineError {
    fn from(error: uc_error) -> Self {
        Self(error)
    }
}

impl Machine {
    /// A machine without any emulator yet.
    ///
    /// # Errors
    ///
    /// If there is no emulator.
    pub fn new() -> Result<Self, EngineError> {
        Ok(Self::default())
    }

    /// Runs both sides of a relocation from one random state.
    ///
    /// # Errors
    ///
    /// If the emulator itself fails. It is then started anew.
    pub fn judge(&mut self, subject: &Subject<'_>, seed: u64) -> Result<Verdict, EngineError> {
        self.judge_pair(&Pair::new(subject), seed)
    }

    /// Runs both sides of any pair from one random state.
    ///
    /// # Errors
    ///
    /// If the emulator itself fails. It is then started anew.
    pub fn judge_pair(&mut self, pair: &Pair<'_>, seed: u64) -> Result<Verdict, EngineError> {
        if let Some(reason) = unjudged::reason(pair.isa, pair.from, pair.code()) {
            return Ok(Verdict::Unjudged(reason));
        }
        if overlaps(pair) {
            return Ok(Verdict::Unjudged("the destination is in the code that it leaves for"));
        }
        let engine = match self.engines.entry(pair.isa.name()) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(vacant) => vacant.insert(Engine::new(pair.isa)?),
        };
        let verdict = judge(engine, pair, seed);
        if verdict.is_err() {
            self.engines.remove(pair.isa.name());
        }
        verdict
    }
}

/// What is left for can't be told from what is gone on with.
fn overlaps(pair: &Pair<'_>) -> bool {
    pair.to.wrapping_sub(pair.from) < pair.source.len() as u64
        || pair.from.wrapping_sub(pair.to) < pair.relocated.len() as u64
}

fn judge(engine: &mut Engine, pair: &Pair<'_>, seed: u64) -> Result<Verdict, EngineError> {
    let conditional = if pair.isa == Isa::T32 { inspect::conditional(pair.code()) } else { Vec::new() };
    let vectors = inspect::uses_vectors(pair.isa, pair.code())
        || inspect::uses_vectors(pair.isa, pair.relocated_code());
    let mut rng = Rng::with_seed(seed);
    engine.enter(pair)?;
    let mut verdict = Verdict::Same;
    for &(from, to) in &pair.map {
        if conditional.contains(&from) {
            continue;
        }
        let state = State::random(pair.isa, vectors, &mut rng);
        let mut start = Start { offset: from, state: &state, aborts: rng.bool(), seed };
        let original = run(engine, pair, &start, None)?;
        start.offset = to;
        let relocated = run(engine, pair, &start, Some(&original))?;
        match compare::compare(pair, &original, &relocated) {
            Verdict::Mismatch(how) => {
                let place = if from == 0 { String::new() } else { format!("from offset {from}: ") };
                verdict = Verdict::Mismatch(format!("{place}{how}"));
                break;
            }
            // From inside, a run may have less to do.
            Verdict::Unjudged(reason) if from == 0 => verdict = Verdict::Unjudged(reason),
            _ => {}
        }
    }
    engine.leave(pair)?;
    Ok(verdict)
}

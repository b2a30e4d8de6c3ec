//! The comparison of decoders over whole functions.

use std::{collections::BTreeMap, fmt};

use grapnel_relocator::{CodeAddr, Isa};

use crate::{
    corpus::Function,
    oracle::second::{Finding, Second},
    tally::Counted,
};

/// What came of comparing instructions.
#[derive(Clone, Default, Debug)]
pub struct Comparison {
    /// How many instructions.
    pub instructions: u64,
    /// By decoder and finding.
    findings: BTreeMap<(&'static str, &'static str), Counted>,
    /// Those that differ, by decoder and name of the instruction.
    differing: BTreeMap<(&'static str, String), Counted>,
}

impl Comparison {
    /// Compares every instruction of a function, data in between as well: what they are is for each decoder to say.
    pub fn add(&mut self, isa: Isa, function: &Function, second: &Second) {
        let own = function.own();
        let mut at = 0;
        while at < own.len() {
            let addr = function.addr.add(at as u64);
            let inspected = second.inspect(isa, addr, &own[at..]);
            self.instructions += 1;
            for (who, finding) in inspected.findings {
                let text = || text(isa, addr, &own[at..at + inspected.len]);
                let name = match &finding {
                    Finding::Agrees => "agrees",
                    Finding::Unknown => "does not know",
                    Finding::OnlyTheirs => "alone knows",
                    Finding::Refused => "need not agree, refused by name",
                    Finding::TheirError(reason) => reason,
                    Finding::Differs(how) => {
                        let text = text();
                        let mnemonic = text.split(' ').next().unwrap_or_default().to_owned();
                        let differing = self.differing.entry((who, mnemonic)).or_default();
                        differing.add(|| format!("{text} at {addr}\n{how}"));
                        "differs"
                    }
                };
                self.findings.entry((who, name)).or_default().add(|| format!("{} at {addr}", text()));
            }
            at += inspected.len.max(1);
        }
    }

    /// Takes the counts of another one.
    pub fn merge(&mut self, other: Self) {
        self.instructions += other.instructions;
        for (key, counted) in other.findings {
            self.findings.entry(key).or_default().merge(counted);
        }
        for (key, counted) in other.differing {
            self.differing.entry(key).or_default().merge(counted);
        }
    }

    /// No decoder sees anything otherwise.
    #[must_use]
    pub fn is_undisputed(&self) -> bool {
        self.differing.is_empty()
    }
}

fn text(isa: Isa, addr: CodeAddr, bytes: &[u8]) -> String {
    let line = grapnel_arch::listing(isa, addr, bytes).into_iter().next();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{} ({hex})", line.map(|line| line.text).unwrap_or_default())
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<60} {:>12}", "instructions", self.instructions)?;
        for ((who, name), counted) in &self.findings {
            writeln!(f, "{:<60} {:>12}", format!("{who} {name}"), counted.count)?;
            if *name != "agrees" {
                write!(f, "{counted}")?;
            }
        }
        for ((who, mnemonic), counted) in &self.differing {
            write!(f, "\n{who}, {mnemonic}, {} times:\n{counted}", counted.count)?;
        }
        Ok(())
    }
}

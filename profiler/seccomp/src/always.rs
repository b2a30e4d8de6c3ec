//! All that a filter may answer, where little is known of the call.

use crate::Instruction;
use crate::run::{LENGTH, code, computed, holds};

/// A place in the filter, with what its registers hold there, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    at: usize,
    a: Option<u32>,
    x: Option<u32>,
}

/// So many ways may wait to be followed.
const WAITING: usize = 64;
/// So many steps are made before it is given up.
const STEPS: usize = 1 << 16;

/// The ways that are still to be followed.
struct Ways {
    waiting: [Place; WAITING],
    len: usize,
}

impl Ways {
    /// Whether there is room. What waits already waits once.
    fn push(&mut self, place: Place) -> bool {
        if self.waiting[..self.len].contains(&place) {
            return true;
        }
        let Some(free) = self.waiting.get_mut(self.len) else { return false };
        *free = place;
        self.len += 1;
        true
    }

    fn pop(&mut self) -> Option<Place> {
        self.len = self.len.checked_sub(1)?;
        Some(self.waiting[self.len])
    }
}

/// Whether a filter answers with what `accepts`, whatever the arguments of a call with this number are, and wherever it is
/// made. False also where that takes too long to find out.
///
/// Follows each way that the filter may take. What it keeps in memory counts as unknown.
pub fn always(filter: &[Instruction], number: u32, arch: u32, accepts: impl Fn(u32) -> bool) -> bool {
    let start = Place { at: 0, a: Some(0), x: Some(0) };
    let mut ways = Ways { waiting: [start; WAITING], len: 1 };
    let mut steps = STEPS;
    while let Some(place) = ways.pop() {
        if !one_way(filter, [number, arch], place, &mut ways, &mut steps, &accepts) {
            return false;
        }
    }
    true
}

fn one_way(
    filter: &[Instruction],
    known: [u32; 2],
    Place { mut at, mut a, mut x }: Place,
    ways: &mut Ways,
    steps: &mut usize,
    accepts: &impl Fn(u32) -> bool,
) -> bool {
    loop {
        let (Some(left), Some(&Instruction { code, jt, jf, k })) = (steps.checked_sub(1), filter.get(at))
        else {
            return false;
        };
        *steps = left;
        at += 1;
        match code {
            code::LD_ABS => a = known.get(k as usize / 4).copied().filter(|_| k.is_multiple_of(4)),
            code::LD_LEN => a = Some(LENGTH),
            code::LDX_LEN => x = Some(LENGTH),
            code::LD_IMM => a = Some(k),
            code::LDX_IMM => x = Some(k),
            code::LD_MEM => a = None,
            code::LDX_MEM => x = None,
            code::ST | code::STX => {}
            code::TAX => x = a,
            code::TXA => a = x,
            code::RET_K => return accepts(k),
            code::RET_A => return a.is_some_and(accepts),
            code::JA => match at.checked_add(k as usize) {
                Some(to) => at = to,
                None => return false,
            },
            _ => {
                let operand = if code & code::X == 0 { Some(k) } else { x };
                let both = a.zip(operand);
                match (code & code::CLASS, both) {
                    (code::ALU, Some((left, right))) => match computed(code, left, right) {
                        Some(Ok(value)) => a = Some(value),
                        Some(Err(answer)) => return accepts(answer),
                        None => return false,
                    },
                    (code::ALU, None) => {
                        // What divides by something unknown may end there.
                        let divides = code & 0xf0 == 0x30;
                        if computed(code, 1, 1).is_none()
                            || divides && operand.is_none_or(|by| by == 0) && !accepts(0)
                        {
                            return false;
                        }
                        a = None;
                    }
                    (code::JMP, Some((left, right))) => match holds(code, left, right) {
                        Some(true) => at += usize::from(jt),
                        Some(false) => at += usize::from(jf),
                        None => return false,
                    },
                    (code::JMP, None) => {
                        if holds(code, 1, 1).is_none() || !ways.push(Place { at: at + usize::from(jt), a, x })
                        {
                            return false;
                        }
                        at += usize::from(jf);
                    }
                    _ => return false,
                }
            }
        }
    }
}

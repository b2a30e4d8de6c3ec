//! Registers that the code ahead overwrites before it reads them.

use grapnel_arch::{
    CodeAddr,
    x86_64::{Counter, Flow, Mask, decode, effects},
};

use super::Code;

/// RAX, RCX, RDX, RSI, RDI and R8 to R11. The others are callee-saved: an exception that an instruction raises on the way
/// can end in a handler of the same function, which reads them.
const CALLER_SAVED: Mask = 0b1111_1100_0111;

/// How many instructions are looked at.
const STEPS: u32 = 24;

/// The registers whose values at `at` no path ahead reads.
///
/// A path is followed through jumps and conditional branches as far as the bytes are known, and ends at calls, returns
/// and everything else that leaves: what has not been overwritten by then may be read.
pub(super) fn dead_at(from: CodeAddr, code: &Code, at: CodeAddr) -> Mask {
    Sight { from, code, steps: STEPS }.dead_at(at) & CALLER_SAVED
}

struct Sight<'a> {
    from: CodeAddr,
    code: &'a [u8],
    steps: u32,
}

impl Sight<'_> {
    fn dead_at(&mut self, mut at: CodeAddr) -> Mask {
        let (mut read, mut dead) = (0, 0);
        while self.steps > 0 && (read | dead) & CALLER_SAVED != CALLER_SAVED {
            self.steps -= 1;
            // At the window's start a patch will be, and behind it a hook that may look at any register.
            let offset = at.offset_within(self.from, self.code.len() as u64).filter(|&offset| offset > 0);
            let Some(offset) = offset else { return dead };
            let Ok(inst) = decode(at, &self.code[offset as usize..]) else { return dead };
            match inst.flow() {
                Flow::Next => {
                    let effects = effects(&inst);
                    read |= effects.uses & !dead;
                    dead |= effects.overwrites & !read;
                    at = inst.next();
                }
                Flow::Jump { target } => at = target,
                Flow::Cond { target, .. } | Flow::Counter { kind: Counter::Zero, target } => {
                    read |= effects(&inst).uses & !dead;
                    let both = self.dead_at(target) & self.dead_at(inst.next());
                    return dead | both & !read;
                }
                _ => return dead,
            }
        }
        dead
    }
}

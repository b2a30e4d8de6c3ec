//! What an instruction does to the flow of its function.

use grapnel_arch::{
    CodeAddr, DecodeError,
    x86_64::{Flow, Inst, decode, table_jump},
};

use super::{culprit, culprit_at};
use crate::{
    Culprit,
    instruction::{Branch, Indirect, Instruction, Operand},
};

impl Instruction for Inst {
    const UNIT: usize = 1;
    const MIXED: bool = false;
    /// Compilers and linkers align functions to it.
    const ALIGNMENT: u64 = 16;
    const ADDRESS: u64 = u64::MAX;

    fn decode_behind(_run: &[Self], at: CodeAddr, bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(at, bytes)
    }

    fn culprit_behind(_run: &[Self], at: CodeAddr, bytes: &[u8]) -> Culprit {
        culprit_at(at, bytes)
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }

    fn culprit(&self) -> Culprit {
        culprit(self)
    }

    fn is_padding(&self) -> bool {
        Self::is_padding(self)
    }

    fn is_breakpoint(&self) -> bool {
        self.flow() == Flow::Breakpoint
    }

    fn is_exit(&self) -> bool {
        self.flow().is_exit()
    }

    fn branch(&self) -> Option<Branch> {
        match self.flow() {
            Flow::Call { target } => Some(Branch::Call(target)),
            flow => flow.target().map(Branch::Jump),
        }
    }

    fn operand(run: &[Self]) -> Option<Operand> {
        run.last()?.rip_operand().map(Operand::from)
    }

    fn indirect(run: &[Self]) -> Indirect {
        match run.last() {
            // A jump through a fixed place in memory leaves for another function; a table's has a register in it.
            Some(jump) if jump.flow() == Flow::JumpIndirect && jump.rip_operand().is_none() => {
                table_jump(run).into()
            }
            _ => Indirect::None,
        }
    }
}

//! What an instruction does to the flow of its function.

use grapnel_arch::{
    CodeAddr, DecodeError,
    a32::{Flow, INST_LEN, Inst, LR, decode, literal_through_register, table_jump},
};

use super::{culprit, culprit_at};
use crate::{
    Culprit, Unsupported,
    instruction::{Branch, Indirect, Instruction, Operand},
};

impl Instruction for Inst {
    const UNIT: usize = INST_LEN;
    const MIXED: bool = true;
    /// Loops and functions that are aligned at all are aligned to 16 bytes or less.
    const ALIGNMENT: u64 = 16;
    const ADDRESS: u64 = u32::MAX as u64;

    fn decode_behind(_run: &[Self], at: CodeAddr, bytes: &[u8]) -> Result<Self, DecodeError> {
        decode(at, bytes)
    }

    fn culprit_behind(_run: &[Self], at: CodeAddr, bytes: &[u8]) -> Culprit {
        culprit_at(at, bytes)
    }

    fn unpredictable() -> Option<Unsupported> {
        Some(grapnel_arch::a32::Unsupported::Unpredictable.into())
    }

    fn len(&self) -> usize {
        INST_LEN
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
        Self::is_exit(self)
    }

    fn branch(&self) -> Option<Branch> {
        match self.flow() {
            Flow::Jump { target, thumb: true } | Flow::Call { target, thumb: true } => {
                Some(Branch::Foreign(target))
            }
            Flow::Jump { target, .. } => Some(Branch::Jump(target)),
            Flow::Call { target, .. } => Some(Branch::Call(target)),
            _ => None,
        }
    }

    /// `mov lr, pc` and its like.
    fn return_address(&self) -> Option<CodeAddr> {
        self.address().filter(|address| address.register == LR).map(|address| address.value)
    }

    fn operand(run: &[Self]) -> Option<Operand> {
        let inst = run.last()?;
        let address = || inst.address().map(|address| Operand { target: address.value, access: 0 });
        // A preload of the window's bytes reads them for nobody.
        inst.literal().filter(|literal| literal.access > 0).map(Operand::from).or_else(address)
    }

    fn constants(run: &[Self]) -> Option<Operand> {
        run.last()?.literal().or_else(|| literal_through_register(run)).map(Operand::from)
    }

    fn indirect(run: &[Self]) -> Indirect {
        let Some((jump, before)) = run.split_last().filter(|(jump, _)| jump.flow() == Flow::JumpIndirect)
        else {
            return Indirect::None;
        };
        // A jump through a fixed place in memory leaves for another function; a table's has a register in it. And one that
        // leaves its return address in LR before is a call.
        let calls = before.last().and_then(Self::return_address) == Some(jump.next());
        if jump.literal().is_some() || calls { Indirect::None } else { table_jump(run).into() }
    }
}

//! What an instruction does to the flow of its function.

use grapnel_arch::{
    CodeAddr, DecodeError,
    t32::{Flow, Inst, It, PcUse, decode_within, len, table_jump},
};

use super::{culprit, culprit_at};
use crate::{
    Culprit, Unsupported,
    instruction::{Branch, Indirect, Instruction, Operand},
};

/// A halfword.
const UNIT: usize = 2;

impl Instruction for Inst {
    const UNIT: usize = UNIT;
    const MIXED: bool = true;
    /// Functions begin at any multiple of 4, often of 2.
    const ALIGNMENT: u64 = 4;
    /// Bit 0 says that it is T32 code.
    const ADDRESS: u64 = 0xffff_fffe;

    fn decode_behind(run: &[Self], at: CodeAddr, bytes: &[u8]) -> Result<Self, DecodeError> {
        decode_within(at, bytes, run.last().map_or(It::OUTSIDE, Self::next_it))
    }

    fn culprit_behind(run: &[Self], at: CodeAddr, bytes: &[u8]) -> Culprit {
        culprit_at(at, bytes, run.last().map_or(It::OUTSIDE, Self::next_it))
    }

    fn unpredictable() -> Option<Unsupported> {
        Some(grapnel_arch::t32::Unsupported::Unpredictable.into())
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// An IT instruction rules the others of its block.
    fn whole_len(&self, bytes: &[u8]) -> usize {
        let (mut it, mut end) = (self.next_it(), self.bytes().len());
        while it.is_inside() {
            let Some(first) = bytes.get(end..).and_then(|bytes| bytes.first_chunk()) else { break };
            end += len(u16::from_le_bytes(*first));
            it = it.advanced();
        }
        end
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
            Flow::CallA32 { target } | Flow::JumpA32 { target } => Some(Branch::Foreign(target)),
            Flow::Call { target } => Some(Branch::Call(target)),
            flow => flow.target().map(Branch::Jump),
        }
    }

    fn operand(run: &[Self]) -> Option<Operand> {
        match run.last()?.pc_use() {
            PcUse::Literal(literal) if literal.access > 0 => Some(literal.into()),
            PcUse::Address { value, .. } => Some(Operand { target: value, access: 0 }),
            _ => None,
        }
    }

    fn constants(run: &[Self]) -> Option<Operand> {
        match run.last()?.pc_use() {
            PcUse::Literal(literal) => Some(literal.into()),
            _ => None,
        }
    }

    fn indirect(run: &[Self]) -> Indirect {
        match run.last() {
            Some(jump) => match jump.flow() {
                Flow::Table { .. } | Flow::AddToPc { .. } => table_jump(run).into(),
                // A jump through a fixed place in memory leaves for another function; a table's has a register in it.
                Flow::JumpIndirect if !matches!(jump.pc_use(), PcUse::Literal(_)) => table_jump(run).into(),
                _ => Indirect::None,
            },
            None => Indirect::None,
        }
    }
}

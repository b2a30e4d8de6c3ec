//! What an instruction does to the flow of its function.

use grapnel_arch::{
    CodeAddr, DecodeError,
    aarch64::{Flow, INST_LEN, Inst, PcUse, decode, table_jump},
};

use super::{culprit, culprit_at, plan::added_address};
use crate::{
    Culprit,
    instruction::{Branch, Indirect, Instruction, Operand},
};

impl Instruction for Inst {
    const UNIT: usize = INST_LEN;
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
        self.flow().is_exit()
    }

    fn branch(&self) -> Option<Branch> {
        match self.flow() {
            Flow::Call { target } => Some(Branch::Call(target)),
            flow => flow.target().map(Branch::Jump),
        }
    }

    /// `b.ls`
    fn branches_into_switch(&self) -> bool {
        self.word() & 0xff00_001f == 0x5400_0009
    }

    fn operand(run: &[Self]) -> Option<Operand> {
        let inst = run.last()?;
        let sum = || added_address(run, inst).map(|target| Operand { target, access: 0 });
        inst.operand().map(Operand::from).or_else(sum)
    }

    fn constants(run: &[Self]) -> Option<Operand> {
        let operand = run.last()?.operand()?;
        matches!(operand.kind, PcUse::Literal(_)).then_some(operand.into())
    }

    fn indirect(run: &[Self]) -> Indirect {
        match run.last() {
            Some(jump) if jump.flow() == Flow::JumpIndirect => table_jump(run).into(),
            _ => Indirect::None,
        }
    }
}

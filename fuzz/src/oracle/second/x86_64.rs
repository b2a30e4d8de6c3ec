//! x86-64, against Capstone.

use capstone::{
    Capstone, InsnGroupId, InsnGroupType, RegId,
    arch::{BuildsCapstone, DetailsArchInsn, x86},
};
use grapnel_arch::x86_64::{Flow, Inst, decode};
use grapnel_relocator::CodeAddr;

use super::{
    Finding, Inspected,
    view::{View, compare},
};

/// Another decoder.
pub(super) struct Second {
    capstone: Capstone,
}

impl Second {
    pub(super) fn new() -> Result<Self, capstone::Error> {
        let capstone = Capstone::new().x86().mode(x86::ArchMode::Mode64).detail(true).build()?;
        Ok(Self { capstone })
    }

    /// Looks at each instruction of a window's code.
    pub(super) fn inspect(&self, addr: CodeAddr, bytes: &[u8]) -> Inspected {
        let Ok(inst) = decode(addr, bytes) else {
            return Inspected { len: bytes.len(), findings: Vec::new() };
        };
        // It leaves out the ModRM of UD0 and UD1 (SDM volume 2, UD), behind which nothing is executed.
        let finding = match inst.flow() {
            Flow::Undefined => Finding::Agrees,
            _ => compare(0, &ours(&inst), self.view(&inst), &[]),
        };
        Inspected { len: inst.bytes().len(), findings: vec![("capstone", finding)] }
    }

    fn view(&self, inst: &Inst) -> Option<View> {
        // More bytes than the instruction has, or a length that is too short would not be seen.
        let mut bytes = inst.bytes().to_vec();
        bytes.resize(16, 0);
        let found = self.capstone.disasm_count(&bytes, inst.addr().0, 1).ok()?;
        let insn = found.first()?;
        let detail = self.capstone.insn_detail(insn).ok()?;
        let arch = detail.arch_detail();
        let arch = arch.x86()?;
        let in_group = |group| detail.groups().contains(&InsnGroupId(group as u8));
        let next = inst.addr().add(insn.len() as u64);
        let (mut target, mut operand) = (None, None);
        let leaves = [
            InsnGroupType::CS_GRP_JUMP,
            InsnGroupType::CS_GRP_CALL,
            InsnGroupType::CS_GRP_RET,
            // LOOP and XBEGIN are in this group only.
            InsnGroupType::CS_GRP_BRANCH_RELATIVE,
        ];
        let leaves = leaves.into_iter().any(in_group);
        for op in arch.operands() {
            match op.op_type {
                x86::X86OperandType::Imm(value) if leaves => target = Some(CodeAddr(value.cast_unsigned())),
                x86::X86OperandType::Mem(mem) if mem.base() == RegId(x86::X86Reg::X86_REG_RIP as u16) => {
                    operand = Some(next.offset(mem.disp()));
                }
                x86::X86OperandType::Mem(mem) if mem.base() == RegId(x86::X86Reg::X86_REG_EIP as u16) => {
                    operand = Some(CodeAddr(next.offset(mem.disp()).0 & 0xffff_ffff));
                }
                _ => {}
            }
        }
        Some(View {
            len: insn.len(),
            leaves,
            target: target.filter(|_| !in_group(InsnGroupType::CS_GRP_RET)),
            operand,
            reads_pc: operand.is_some(),
        })
    }
}

fn ours(inst: &Inst) -> View {
    let leaves = match inst.flow() {
        Flow::Jump { .. }
        | Flow::Cond { .. }
        | Flow::Counter { .. }
        | Flow::Call { .. }
        | Flow::JumpIndirect
        | Flow::CallIndirect
        | Flow::Xbegin { .. }
        | Flow::Return => true,
        Flow::Next | Flow::Syscall | Flow::Undefined | Flow::Breakpoint => false,
        Flow::Unsupported(_) => true,
    };
    View {
        len: inst.bytes().len(),
        leaves,
        target: inst.flow().target().filter(|_| leaves),
        operand: inst.rip_operand().map(|operand| operand.target),
        reads_pc: inst.rip_operand().is_some(),
    }
}

//! x86-64, against Capstone.

use capstone::{
    Capstone, InsnGroupId, InsnGroupType, RegId,
    arch::{BuildsCapstone, DetailsArchInsn, x86},
};
use grapnel_arch::x86_64::{Flow, Inst, decode};
use grapnel_relocator::CodeAddr;

use super::Opinion;

/// Another decoder.
pub(super) struct Second {
    capstone: Capstone,
}

/// What both decoders must agree on.
#[derive(PartialEq, Eq, Debug)]
struct View {
    len: usize,
    leaves: bool,
    target: Option<CodeAddr>,
    operand: Option<CodeAddr>,
}

impl Second {
    pub(super) fn new() -> Result<Self, capstone::Error> {
        let capstone = Capstone::new().x86().mode(x86::ArchMode::Mode64).detail(true).build()?;
        Ok(Self { capstone })
    }

    /// Looks at each instruction of a window's code.
    pub(super) fn opinion(&self, from: CodeAddr, code: &[u8]) -> Opinion {
        let mut at = 0;
        let mut opinion = Opinion::Agrees;
        while at < code.len() {
            let Ok(inst) = decode(from.add(at as u64), &code[at..]) else { return Opinion::Unknown };
            // It leaves out the ModRM of UD0 and UD1 (SDM volume 2, UD), behind which nothing is executed.
            let view = if inst.flow() == Flow::Undefined { Some(ours(&inst)) } else { self.view(&inst) };
            match view {
                None => opinion = Opinion::Unknown,
                Some(view) if view != ours(&inst) => {
                    return Opinion::Differs(format!(
                        "{:x?}\nours {:x?}\ntheirs {view:x?}",
                        inst.bytes(),
                        ours(&inst)
                    ));
                }
                Some(_) => {}
            }
            at += inst.bytes().len();
        }
        opinion
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
    }
}

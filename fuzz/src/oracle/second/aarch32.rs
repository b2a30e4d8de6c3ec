//! A32 and T32, against Capstone and yaxpeax-arm.

use capstone::{
    AccessType, Capstone, InsnGroupId, InsnGroupType, RegId,
    arch::{
        BuildsCapstone, BuildsCapstoneExtraMode, DetailsArchInsn,
        arm::{self, ArmInsn, ArmOperandType, ArmReg},
    },
};
use grapnel_arch::{a32, t32};
use grapnel_relocator::CodeAddr;

use super::view::{Erratum, View};

/// Known errors of Capstone 5 in A32.
pub(super) const CAPSTONE_A32: &[Erratum] = &[Erratum {
    mask: 0x0e10_8000,
    value: 0x0800_8000,
    reason: "doesn't say that STM reads the PC in its list (DDI 0406, A8.8.199: it stores PCStoreValue())",
}];
/// Known errors of Capstone 5 in T32.
pub(super) const CAPSTONE_T32: &[Erratum] = &[];
/// Known errors of yaxpeax-arm 0.5 in A32.
#[cfg(feature = "yaxpeax")]
pub(super) const YAXPEAX_A32: &[Erratum] = &[Erratum {
    mask: 0x0eff_fffe,
    value: 0x0a7f_fffe,
    reason: "adds the PC's 8 bytes to B and BL in 24 bits, which the two farthest targets overflow (DDI 0406, A8.8.18)",
}];
/// Known errors of yaxpeax-arm 0.5 in T32.
#[cfg(feature = "yaxpeax")]
pub(super) const YAXPEAX_T32: &[Erratum] = &[
    Erratum {
        mask: 0xf000_0000,
        value: 0xd000_0000,
        reason: "counts the narrow B with a condition from two bytes too far (DDI 0406, A8.8.18: from the PC, address and 4)",
    },
    Erratum {
        mask: 0xf500_0000,
        value: 0xb100_0000,
        reason: "counts CBZ and CBNZ from two bytes too far (DDI 0406, A8.8.29: from the PC, address and 4)",
    },
];

pub(super) fn capstone(mode: arm::ArchMode) -> Result<Capstone, capstone::Error> {
    let extra = [arm::ArchExtraMode::V8];
    Capstone::new().arm().mode(mode).extra_mode(extra.into_iter()).detail(true).build()
}

/// What our decoder says of an A32 instruction; `None` if it refuses it by name.
pub(super) fn ours_a32(inst: &a32::Inst) -> Option<View> {
    use a32::{Flow, Form};

    let leaves = match inst.flow() {
        Flow::Next | Flow::Undefined | Flow::Breakpoint => false,
        Flow::Unsupported(_) => return None,
        _ => true,
    };
    // A run of registers from the PC on is not told as an address by others.
    let runs = inst.form() == Form::Coprocessor && inst.word() >> 24 & 1 == 0;
    // The PC may be the register that BX and its kin go to.
    let through_pc = inst.form() == Form::BranchRegister && inst.word() & 15 == 15;
    Some(View {
        len: 4,
        leaves,
        target: inst.flow().target().filter(|_| inst.form() == Form::Branch),
        operand: inst.literal().filter(|_| !runs).map(|literal| literal.target),
        reads_pc: inst.pc_reads().any() || through_pc,
    })
}

/// What our decoder says of a T32 instruction; `None` if it refuses it by name.
pub(super) fn ours_t32(inst: &t32::Inst) -> Option<View> {
    use t32::{Flow, PcUse};

    let leaves = match inst.flow() {
        Flow::Next | Flow::Undefined | Flow::Breakpoint => false,
        Flow::Unsupported(_) => return None,
        _ => true,
    };
    let (first, _) = inst.halfwords();
    // mov pc, pc and bx pc go to constant addresses, which nobody computes.
    let register = matches!(first >> 8, 0x44..=0x47);
    let target = match inst.flow() {
        Flow::CallA32 { target } => Some(target),
        flow => flow.target(),
    };
    let operand = match inst.pc_use() {
        PcUse::Literal(literal) => Some(literal.target),
        _ => None,
    };
    let through_pc = register && first >> 3 & 15 == 15 || first & 0xff87 == 0x4487;
    let table = matches!(inst.flow(), Flow::Table { base: 15, .. });
    Some(View {
        len: inst.bytes().len(),
        leaves,
        target: target.filter(|_| !register),
        operand,
        reads_pc: inst.pc_use() != PcUse::None || through_pc || table,
    })
}

pub(super) fn by_capstone(capstone: &Capstone, addr: CodeAddr, bytes: &[u8], ahead: u64) -> Option<View> {
    const PC: RegId = RegId(ArmReg::ARM_REG_PC as u16);

    let found = capstone.disasm_count(bytes, addr.0, 1).ok()?;
    let insn = found.first()?;
    let detail = capstone.insn_detail(insn).ok()?;
    let in_group = |group| detail.groups().contains(&InsnGroupId(group as u8));
    let branches = [InsnGroupType::CS_GRP_JUMP, InsnGroupType::CS_GRP_CALL].into_iter().any(in_group);
    let (mut reads_pc, mut writes_pc) = (insn.id().0 == ArmInsn::ARM_INS_ADR as u32, false);
    let (mut immediate, mut operand) = (None, None);
    let base = CodeAddr(addr.add(ahead).0 & !3);
    for op in detail.arch_detail().arm()?.operands() {
        match op.op_type {
            ArmOperandType::Reg(register) if register == PC => {
                let access = op.access;
                writes_pc |= matches!(access, Some(AccessType::WriteOnly | AccessType::ReadWrite));
                reads_pc |= matches!(access, Some(AccessType::ReadOnly | AccessType::ReadWrite));
            }
            ArmOperandType::Imm(value) => {
                immediate = Some(CodeAddr(u64::from(value.cast_unsigned())));
            }
            ArmOperandType::Mem(memory) => {
                reads_pc |= memory.base() == PC || memory.index() == PC;
                if memory.base() == PC && memory.index() == RegId(0) {
                    // What is subtracted has a negative displacement in some forms, and a positive one in others.
                    let distance = i64::from(memory.disp()).abs();
                    let down = op.subtracted || memory.disp() < 0;
                    let target = base.offset(if down { -distance } else { distance });
                    operand = Some(CodeAddr(target.0 & 0xffff_ffff));
                }
            }
            _ => {}
        }
    }
    Some(View {
        len: insn.len(),
        leaves: branches || writes_pc,
        target: immediate.filter(|_| branches),
        operand,
        reads_pc,
    })
}

/// yaxpeax-arm panics on some words ("register number out of range"): it doesn't know them.
#[cfg(feature = "yaxpeax")]
fn quietly<T>(decode: impl FnOnce() -> Option<T>) -> Option<T> {
    use std::{
        panic::{self, AssertUnwindSafe},
        sync::Once,
    };

    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let others = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !info.location().is_some_and(|at| at.file().contains("yaxpeax-arm")) {
                others(info);
            }
        }));
    });
    // The decoder is made anew each time, so nothing half-done is left.
    panic::catch_unwind(AssertUnwindSafe(decode)).ok().flatten()
}

/// Length, kind and branch target, as yaxpeax-arm says; what it doesn't is taken from our view.
#[cfg(feature = "yaxpeax")]
pub(super) fn by_yaxpeax(addr: CodeAddr, bytes: &[u8], thumb: bool, ours: &View) -> Option<View> {
    use yaxpeax_arch::{Decoder, LengthedInstruction, U8Reader};
    use yaxpeax_arm::armv7::{InstDecoder, Opcode, Operand};

    let decoder = InstDecoder::default().with_thumb_mode(thumb);
    let inst = quietly(|| decoder.decode(&mut U8Reader::new(bytes)).ok())?;
    let is_pc = |operand: &Operand| matches!(operand, Operand::Reg(register) if register.number() == 15);
    let leaves = match inst.opcode {
        Opcode::B | Opcode::BL | Opcode::BLX | Opcode::BX | Opcode::BXJ => true,
        Opcode::CBZ | Opcode::CBNZ | Opcode::TBB | Opcode::TBH => true,
        Opcode::POP | Opcode::LDM(..) => {
            inst.operands.iter().any(|operand| matches!(operand, Operand::RegList(list) if list >> 15 == 1))
                || is_pc(&inst.operands[0])
        }
        // Its first operand is what it writes, unless it stores or compares.
        Opcode::LDR | Opcode::MOV | Opcode::ADD | Opcode::SUB | Opcode::MVN | Opcode::RSB | Opcode::AND => {
            is_pc(&inst.operands[0])
        }
        Opcode::ORR | Opcode::EOR | Opcode::BIC | Opcode::ADC | Opcode::SBC | Opcode::RSC => {
            is_pc(&inst.operands[0])
        }
        _ => ours.leaves && ours.target.is_none(),
    };
    // It has added the 8 that the PC is ahead to B and BL in A32, and nothing elsewhere. BLX counts from a multiple of 4.
    let base = match (thumb, inst.opcode) {
        (false, Opcode::BLX) => addr.add(8),
        (false, _) => addr,
        (true, Opcode::BLX) => CodeAddr(addr.add(4).0 & !3),
        (true, _) => addr.add(4),
    };
    let target = inst.operands.iter().find_map(|operand| match operand {
        Operand::BranchOffset(offset) => Some(base.offset(i64::from(*offset) * 4)),
        Operand::BranchThumbOffset(offset) => Some(base.offset(i64::from(*offset) * 2)),
        _ => None,
    });
    let len = u64::from(inst.len().to_const()) as usize;
    Some(View { len, leaves, target: target.map(|target| CodeAddr(target.0 & 0xffff_ffff)), ..*ours })
}

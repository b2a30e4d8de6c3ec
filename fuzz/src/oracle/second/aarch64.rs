//! AArch64, against Capstone and yaxpeax-arm.

use capstone::{
    Capstone, InsnGroupId, InsnGroupType,
    arch::{
        BuildsCapstone, DetailsArchInsn,
        arm64::{self, Arm64Insn, Arm64OperandType},
    },
};
use grapnel_arch::aarch64::{Flow, Inst};
use grapnel_relocator::CodeAddr;

use super::view::{Erratum, View};

/// Known errors of Capstone 5.
pub(super) const CAPSTONE: &[Erratum] = &[Erratum {
    mask: 0xff00_0010,
    value: 0x5400_0010,
    reason: "has BC.cond in no group, though it branches (DDI 0487, C6.2 \"BC.cond\")",
}];

/// Known errors of yaxpeax-arm 0.5.
#[cfg(feature = "yaxpeax")]
pub(super) const YAXPEAX: &[Erratum] = &[];

pub(super) fn capstone() -> Result<Capstone, capstone::Error> {
    Capstone::new().arm64().mode(arm64::ArchMode::Arm).detail(true).build()
}

/// What our decoder says; `None` if it refuses the instruction by name.
pub(super) fn ours(inst: &Inst) -> Option<View> {
    let leaves = match inst.flow() {
        Flow::Jump { .. }
        | Flow::Cond { .. }
        | Flow::Call { .. }
        | Flow::JumpIndirect
        | Flow::CallIndirect
        | Flow::Return => true,
        Flow::Next | Flow::Syscall | Flow::Undefined | Flow::Breakpoint => false,
        Flow::Unsupported(_) => return None,
    };
    let operand = inst.operand().map(|operand| operand.target);
    Some(View { len: 4, leaves, target: inst.flow().target(), operand, reads_pc: operand.is_some() })
}

pub(super) fn by_capstone(capstone: &Capstone, addr: CodeAddr, word: u32) -> Option<View> {
    let found = capstone.disasm_count(&word.to_le_bytes(), addr.0, 1).ok()?;
    let insn = found.first()?;
    let detail = capstone.insn_detail(insn).ok()?;
    let in_group = |group| detail.groups().contains(&InsnGroupId(group as u8));
    let leaves = [InsnGroupType::CS_GRP_JUMP, InsnGroupType::CS_GRP_CALL, InsnGroupType::CS_GRP_RET]
        .into_iter()
        .any(in_group);
    let (mut immediate, mut memory) = (None, false);
    for operand in detail.arch_detail().arm64()?.operands() {
        match operand.op_type {
            Arm64OperandType::Imm(value) => immediate = Some(CodeAddr(value.cast_unsigned())),
            Arm64OperandType::Mem(_) => memory = true,
            _ => {}
        }
    }
    const RELATIVE: [Arm64Insn; 5] = [
        Arm64Insn::ARM64_INS_ADR,
        Arm64Insn::ARM64_INS_ADRP,
        Arm64Insn::ARM64_INS_LDR,
        Arm64Insn::ARM64_INS_LDRSW,
        Arm64Insn::ARM64_INS_PRFM,
    ];
    let relative =
        immediate.is_some() && !memory && RELATIVE.iter().any(|&relative| insn.id().0 == relative as u32);
    Some(View {
        len: insn.len(),
        leaves,
        target: immediate.filter(|_| leaves),
        operand: immediate.filter(|_| relative),
        reads_pc: relative,
    })
}

#[cfg(feature = "yaxpeax")]
pub(super) fn by_yaxpeax(addr: CodeAddr, word: u32) -> Option<View> {
    use yaxpeax_arch::{Decoder, U8Reader};
    use yaxpeax_arm::armv8::a64::{InstDecoder, Opcode, Operand};

    let inst = InstDecoder::default().decode(&mut U8Reader::new(&word.to_le_bytes())).ok()?;
    let leaves = matches!(
        inst.opcode,
        Opcode::B
            | Opcode::Bcc(_)
            | Opcode::BCcc(_)
            | Opcode::BL
            | Opcode::BR
            | Opcode::BLR
            | Opcode::RET
            | Opcode::CBZ
            | Opcode::CBNZ
            | Opcode::TBZ
            | Opcode::TBNZ
            | Opcode::BRAA
            | Opcode::BRAB
            | Opcode::BRAAZ
            | Opcode::BRABZ
            | Opcode::BLRAA
            | Opcode::BLRAB
            | Opcode::BLRAAZ
            | Opcode::BLRABZ
            | Opcode::RETAA
            | Opcode::RETAB
    );
    let offset = inst.operands.iter().find_map(|operand| match operand {
        Operand::PCOffset(offset) => Some(*offset),
        _ => None,
    });
    let base = if inst.opcode == Opcode::ADRP { CodeAddr(addr.0 & !0xfff) } else { addr };
    let at = offset.map(|offset| base.offset(offset));
    Some(View {
        len: 4,
        leaves,
        target: at.filter(|_| leaves),
        operand: at.filter(|_| !leaves),
        reads_pc: at.is_some() && !leaves,
    })
}

//! What our own reading of AArch64 words says of targets, operands and registers, against the decoder's view.

use exarmo_aarch64::{BranchKind, DynRegSp, DynRegZr, Instruction, Offset, Operand, Reg, decode_word};
use grapnel_arch::{
    CodeAddr, DecodeError,
    aarch64::{Field, Flow, Inst, PcUse, Unsupported, decode},
};

const AT: CodeAddr = CodeAddr(0x7f00_1234_5678);

/// The number of a general register; 31 for any other.
fn number(reg: Reg) -> u8 {
    match reg {
        Reg::W(reg) | Reg::WX(DynRegZr::W(reg)) => reg.num(),
        Reg::X(reg) | Reg::WX(DynRegZr::X(reg)) => reg.num(),
        Reg::WSp(reg) | Reg::WXSp(DynRegSp::W(reg)) => reg.num(),
        Reg::XSp(reg) | Reg::WXSp(DynRegSp::X(reg)) => reg.num(),
        Reg::Gp(reg) => reg.num(),
        _ => 31,
    }
}

/// The general registers that the instruction's text names.
fn named(raw: &Instruction) -> u32 {
    let mut mask = 0;
    let mut add = |reg| mask |= 1_u32 << number(reg);
    for operand in raw.operands().iter() {
        match operand {
            Operand::Reg(operand) => {
                add(operand.reg);
                operand.index_reg.into_iter().for_each(&mut add);
            }
            Operand::Mem(memory) => {
                add(memory.base);
                if let Offset::Reg { reg, .. } = memory.offset {
                    add(reg);
                }
            }
            Operand::ZaSlice(slice) => slice.index.into_iter().for_each(&mut add),
            _ => {}
        }
    }
    mask & 0x7fff_ffff
}

/// The address that the instruction's text names.
fn label(raw: &Instruction) -> Option<CodeAddr> {
    raw.operands().iter().find_map(|operand| match operand {
        Operand::Label { offset, pc } => Some(CodeAddr(AT.0 & !(u64::from(pc.align) - 1)).offset(*offset)),
        _ => None,
    })
}

fn agrees(inst: &Inst, raw: &Instruction) -> Result<(), &'static str> {
    if raw.unpredictable() {
        let refused = inst.flow() == Flow::Unsupported(Unsupported::Unpredictable);
        return refused.then_some(()).ok_or("unpredictable");
    }
    let place = inst.flow().target().or(inst.operand().map(|operand| operand.target));
    let prefetches = inst.operand().is_some_and(|operand| matches!(operand.kind, PcUse::Literal(_)));
    match (place, label(raw)) {
        (ours, theirs) if ours == theirs => {}
        // The decoder gives the literal of PRFM in another form.
        (Some(_), None) if prefetches => {}
        (None, Some(_)) if matches!(inst.flow(), Flow::Unsupported(_)) => {}
        _ => return Err("another address"),
    }
    let agrees = match raw.branch().kind {
        BranchKind::None => matches!(inst.flow(), Flow::Next | Flow::Unsupported(_)),
        BranchKind::Direct if raw.branch().conditional => matches!(inst.flow(), Flow::Cond { .. }),
        BranchKind::Direct => matches!(inst.flow(), Flow::Jump { .. }),
        BranchKind::DirectCall => matches!(inst.flow(), Flow::Call { .. }),
        BranchKind::Indirect => inst.flow() == Flow::JumpIndirect,
        BranchKind::IndirectCall => inst.flow() == Flow::CallIndirect,
        BranchKind::Return => {
            matches!(inst.flow(), Flow::Return | Flow::Unsupported(Unsupported::SignsPc))
        }
        BranchKind::Exception => matches!(inst.flow(), Flow::Undefined | Flow::Breakpoint),
        _ => matches!(inst.flow(), Flow::Syscall | Flow::Unsupported(_)),
    };
    if !agrees {
        return Err("another flow");
    }
    let effects = inst.effects();
    if effects.writes & !effects.changes != 0 {
        return Err("it writes what it does not change");
    }
    let known = effects.reads | effects.changes;
    if !matches!(inst.flow(), Flow::Unsupported(_)) && named(raw) & !known != 0 {
        return Err("a register is not known");
    }
    Ok(())
}

#[test]
fn random_words_mean_what_the_decoder_says() {
    // Marsaglia's xorshift64*.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    };
    for number in 0..1_000_000 {
        let word = match number % 4 {
            0 => random(),
            3 => random() & !0x1e00_0000 | 0x0400_0000,
            // Branches and system instructions; addresses and moves.
            1 => random() & !0x1c00_0000 | 0x1400_0000,
            _ => random() & !0x1c00_0000 | 0x1000_0000,
        };
        let outcome = match (decode(AT, &word.to_le_bytes()), decode_word(word)) {
            (Ok(inst), Ok(raw)) => agrees(&inst, &raw),
            (Err(DecodeError::Undefined), Err(_)) => Ok(()),
            _ => Err("defined for one only"),
        };
        if let Err(what) = outcome {
            panic!("{word:08x}: {what}");
        }
    }
}

#[test]
fn registers_by_name() {
    let effects = |word: u32| {
        let effects = decode(AT, &word.to_le_bytes()).unwrap().effects();
        (effects.reads, effects.writes)
    };
    let set = |numbers: &[u8]| numbers.iter().fold(0, |set, number| set | 1_u32 << number);
    // mov x0, x1; movk x0, #1; ldp x2, x3, [x4]; stp x2, x3, [x4]; ldr w5, [x6, x7]
    assert_eq!(effects(0xaa01_03e0), (set(&[1]), set(&[0])));
    assert_eq!(effects(0xf280_0020), (set(&[0]), set(&[0])));
    assert_eq!(effects(0xa940_0c82), (set(&[4]), set(&[2, 3])));
    assert_eq!(effects(0xa900_0c82), (set(&[2, 3, 4]), 0));
    assert_eq!(effects(0xb867_68c5), (set(&[6, 7]), set(&[5])));
    // cbz x8, +4; bl +4; blr x9; csel x1, x2, x3, eq; ccmp x1, #2, #0, eq; stxr w1, x2, [x3]
    assert_eq!(effects(0xb400_0028), (set(&[8]), 0));
    assert_eq!(effects(0x9400_0001), (0, set(&[30])));
    assert_eq!(effects(0xd63f_0120).1, set(&[30]));
    assert_eq!(effects(0x9a83_0041), (set(&[2, 3]), set(&[1])));
    assert_eq!(effects(0xfa42_0820), (set(&[1]), 0));
    assert_eq!(effects(0xc801_7c62), (set(&[2, 3]), set(&[1])));
    // pacia1716; paciasp; fmov x0, d1; fmov d0, x1; ldr q16, [x1]
    assert_eq!(effects(0xd503_211f), (set(&[16, 17]), 0));
    assert_eq!(effects(0xd503_233f), (set(&[30]), 0));
    assert_eq!(effects(0x9e66_0020), (0, set(&[0])));
    assert_eq!(effects(0x9e67_0020), (set(&[1]), 0));
    assert_eq!(effects(0x3dc0_0030), (set(&[1]), 0));
}

#[test]
fn fields_hold_their_range_and_no_more() {
    for field in [Field::Branch26, Field::Branch19, Field::Branch14, Field::Branch9] {
        let range = field.range() as i64;
        for displacement in [-range, -4, 0, 4, range - 4] {
            assert_eq!(field.set(0, displacement).map(|word| field.get(word)), Some(displacement));
        }
        for displacement in [-range - 4, range, 2] {
            assert_eq!(field.set(0, displacement), None);
        }
    }
}

//! What is not run, because it would tell nothing of the relocation.

use grapnel_relocator::Isa;
use iced_x86::{Decoder, DecoderOptions, EncodingKind, Instruction, Mnemonic, OpKind};

use super::inspect::{halves, is_wide, word};

/// Windows whose behaviour does not follow from their state, or belongs to a kernel.
pub(super) fn reason(isa: Isa, addr: u64, code: &[u8]) -> Option<&'static str> {
    match isa {
        Isa::X86_64 => unjudged_x86_64(addr, code),
        Isa::Aarch64 => code.chunks(4).map(word).find_map(unjudged_aarch64),
        Isa::A32 => code.chunks(4).map(word).find_map(|word| {
            let conditional = word >> 28 != 15;
            let coprocessor_move = word & 0x0ff0_0000 == 0x0c50_0000 && word >> 8 & 15 == 15;
            if conditional && coprocessor_move {
                return Some(CLOCK);
            }
            if conditional && word & 0x0e00_0f00 == 0x0c00_0e00 {
                return Some("it is for a debugger");
            }
            let setend = word & 0xffff_fdff == 0xf101_0000;
            setend.then_some("it changes the byte order of data")
        }),
        Isa::T32 => {
            let mut at = 0;
            while at < code.len() {
                let [first, second] = halves(&code[at..]);
                if first & 0xfff7 == 0xb650 {
                    return Some("it changes the byte order of data");
                }
                if first & 0xfff0 == 0xec50 && second >> 8 & 15 == 15 {
                    return Some(CLOCK);
                }
                if first & 0xee00 == 0xec00 && second >> 8 & 15 == 14 {
                    return Some("it is for a debugger");
                }
                at += if is_wide(first) { 4 } else { 2 };
            }
            None
        }
    }
}

const CLOCK: &str = "it reads a clock or a random number";

/// What the emulator's decoder asserts not to exist: half-precision operations that are newer than it.
fn fails(word: u32) -> bool {
    let bit = |number: u32| word >> number & 1;
    if word & 0x9f60_c400 == 0x0e40_0400 {
        let operation = word >> 11 & 7 | bit(23) << 3 | bit(29) << 4;
        return matches!(operation, 0x05 | 0x0b..=0x0d | 0x11 | 0x19 | 0x1b | 0x1f);
    }
    if word & 0x8f7e_0c00 == 0x0e78_0800 {
        let operation = word >> 12 & 31 | bit(23) << 5 | bit(29) << 6;
        let known = matches!(
            operation,
            0x18..=0x1d | 0x2c..=0x2f | 0x38..=0x3b | 0x3d | 0x3f | 0x58..=0x5d | 0x6c | 0x6d | 0x6f | 0x79..=0x7b | 0x7d | 0x7f
        );
        return !known;
    }
    false
}

fn unjudged_aarch64(word: u32) -> Option<&'static str> {
    if fails(word) {
        return Some("the emulator does not know it, and fails");
    }
    if word & 0xffc0_0000 != 0xd500_0000 {
        return None;
    }
    let (op0, op1, crn, crm) = (word >> 19 & 3, word >> 16 & 7, word >> 12 & 15, word >> 8 & 15);
    let reads = word >> 21 & 1 == 1;
    match (op0, op1, crn, crm) {
        // Hints and barriers; CFINV, XAFLAG and AXFLAG.
        (0, 3, 2 | 3, _) | (0, 0, 4, 0) => None,
        (3, 3, 14 | 9, _) | (3, 3, 2, 4) if reads => Some(CLOCK),
        (1.., 3, ..) => None,
        _ => Some("it is privileged"),
    }
}

/// FNSTSW AX is a control instruction, of which the x87 unit keeps no address (SDM volume 1, 8.1.8).
fn keeps_address_of_control(addr: u64, code: &[u8]) -> bool {
    let has = |wanted: fn(&Instruction) -> bool| {
        Decoder::with_ip(64, code, addr, DecoderOptions::NONE).iter().any(|inst| wanted(&inst))
    };
    has(|inst| inst.mnemonic() == Mnemonic::Fnstsw && inst.op0_kind() == OpKind::Register)
        && has(|inst| {
            matches!(
                inst.mnemonic(),
                Mnemonic::Fnstenv | Mnemonic::Fnsave | Mnemonic::Fxsave | Mnemonic::Fxsave64
            )
        })
}

fn unjudged_x86_64(addr: u64, code: &[u8]) -> Option<&'static str> {
    if keeps_address_of_control(addr, code) {
        return Some("the emulator takes fnstsw for an instruction whose address is kept");
    }
    let mut decoder = Decoder::with_ip(64, code, addr, DecoderOptions::NONE);
    decoder.iter().find_map(|inst| match inst.mnemonic() {
        Mnemonic::Rdtsc
        | Mnemonic::Rdtscp
        | Mnemonic::Rdrand
        | Mnemonic::Rdseed
        | Mnemonic::Rdpmc
        | Mnemonic::Rdpid => Some(CLOCK),
        Mnemonic::Popfq | Mnemonic::Popf => Some("it may set the trap flag"),
        Mnemonic::Swapgs | Mnemonic::Wrfsbase | Mnemonic::Wrgsbase => Some("it changes segments"),
        // It counts from one byte too early: the immediate lies between the displacement and the next instruction.
        Mnemonic::Shld | Mnemonic::Shrd
            if inst.is_ip_rel_memory_operand() && inst.op2_kind() == OpKind::Immediate8 =>
        {
            Some("the emulator has the operand of shld and shrd a byte too low")
        }
        _ if inst.is_privileged() => Some("it is privileged"),
        _ if inst.encoding() == EncodingKind::XOP => Some("the emulator takes XOP for pop"),
        _ if inst.op0_register().is_segment_register() => Some("it changes segments"),
        _ => None,
    })
}

//! Instructions that leave alone what isn't a general register.

use iced_x86::{CpuidFeature, Mnemonic, OpKind, Register};

use super::Inst;

/// Whether `inst` is a general-purpose instruction (SDM volume 1, 5.1): of the program's registers it reads and writes none
/// but the general ones, RIP, the flags and the bases of segments, and so no vector, mask, x87 or MMX register and neither
/// MXCSR.
///
/// Only what is known to be one is told as one.
#[must_use]
pub fn is_general(inst: &Inst) -> bool {
    let raw = inst.raw();
    let fences = matches!(
        raw.mnemonic(),
        Mnemonic::Lfence
            | Mnemonic::Mfence
            | Mnemonic::Sfence
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
    );
    // It tells of x87 exceptions.
    let waits = raw.mnemonic() == Mnemonic::Wait;
    fences
        || (!raw.is_invalid()
            && !waits
            && raw.cpuid_features().iter().all(|&feature| is_of_general_set(feature)))
}

/// Whether `inst` stores to an address that it computes from the stack pointer, or pushes something.
#[must_use]
pub fn stores_by_stack_pointer(inst: &Inst) -> bool {
    let raw = inst.raw();
    let stores = raw.op_count() > 0 && raw.op0_kind() == OpKind::Memory && raw.memory_base() == Register::RSP;
    stores || raw.mnemonic() == Mnemonic::Push
}

fn is_of_general_set(feature: CpuidFeature) -> bool {
    matches!(
        feature,
        CpuidFeature::INTEL8086
            | CpuidFeature::INTEL186
            | CpuidFeature::INTEL286
            | CpuidFeature::INTEL386
            | CpuidFeature::INTEL486
            | CpuidFeature::X64
            | CpuidFeature::CMOV
            | CpuidFeature::CX8
            | CpuidFeature::CMPXCHG16B
            | CpuidFeature::MULTIBYTENOP
            | CpuidFeature::PAUSE
            | CpuidFeature::CET_IBT
            | CpuidFeature::BMI1
            | CpuidFeature::BMI2
            | CpuidFeature::ADX
            | CpuidFeature::LZCNT
            | CpuidFeature::POPCNT
            | CpuidFeature::MOVBE
            | CpuidFeature::PREFETCHW
            | CpuidFeature::TSC
            | CpuidFeature::RDTSCP
            | CpuidFeature::RDRAND
            | CpuidFeature::RDSEED
            | CpuidFeature::RDPID
            | CpuidFeature::FSGSBASE
    )
}

#[cfg(test)]
mod tests {
    use iced_x86::InstructionInfoFactory;

    use super::*;
    use crate::{
        CodeAddr,
        x86_64::{decode, opcodes::each_opcode},
    };

    fn inst(bytes: &[u8]) -> Inst {
        decode(CodeAddr(0x1000), bytes).unwrap()
    }

    /// Every opcode with every ModRM under the prefixes that choose among instructions: another table knows of no register
    /// beyond the general ones.
    #[test]
    fn general_instructions_touch_general_registers_only() {
        let mut factory = InstructionInfoFactory::new();
        let (mut general, mut others) = (0, 0);
        each_opcode(&[&[0xc5], &[0xc4, 0xe2], &[0x62, 0xf1]], |bytes| {
            bytes.extend([0x24, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70]);
            let Ok(inst) = decode(CodeAddr(0x1000), bytes) else { return };
            if !is_general(&inst) {
                others += 1;
                return;
            }
            general += 1;
            let raw = inst.raw();
            for used in factory.info(&raw).used_registers() {
                let register = used.register();
                let harmless = register.is_gpr()
                    || register.is_segment_register()
                    || register.is_cr()
                    || register.is_dr()
                    || register.is_tr()
                    || register.is_ip()
                    || register == Register::None;
                assert!(harmless, "{raw:?} {register:?}");
            }
        });
        assert!(general > 100_000 && others > 100_000, "{general} {others}");
    }

    #[test]
    fn both_kinds_are_known() {
        // endbr64; lock inc [rdi]; rdtsc; cmpxchg16b [rdi]; sfence; mulx rax, rcx, rdx; push rbx; ret
        let general: [&[u8]; 8] = [
            &[0xf3, 0x0f, 0x1e, 0xfa],
            &[0xf0, 0xff, 0x07],
            &[0x0f, 0x31],
            &[0x48, 0x0f, 0xc7, 0x0f],
            &[0x0f, 0xae, 0xf8],
            &[0xc4, 0xe2, 0xf3, 0xf6, 0xc2],
            &[0x53],
            &[0xc3],
        ];
        // movaps xmm0, xmm0; vzeroupper; ldmxcsr [rax]; fwait; emms; kmovw k1, eax; xsave [rax]; fxsave [rax]; fnop
        let others: [&[u8]; 9] = [
            &[0x0f, 0x28, 0xc0],
            &[0xc5, 0xf8, 0x77],
            &[0x0f, 0xae, 0x10],
            &[0x9b],
            &[0x0f, 0x77],
            &[0xc5, 0xf8, 0x92, 0xc8],
            &[0x0f, 0xae, 0x20],
            &[0x0f, 0xae, 0x00],
            &[0xd9, 0xd0],
        ];
        for bytes in general {
            assert!(is_general(&inst(bytes)), "{bytes:x?}");
        }
        for bytes in others {
            assert!(!is_general(&inst(bytes)), "{bytes:x?}");
        }
    }
}

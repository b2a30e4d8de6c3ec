//! Which general registers an instruction touches.
//!
//! The answer is on the safe side: what is not known to be untouched counts as used. iced-x86's own answer allocates, so
//! it serves as the judge in the tests below.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::Inst;

/// A set of general registers: bit 0 is RAX, and so on by the numbers in instructions.
pub type Mask = u16;

/// The stack pointer.
pub const RSP: Mask = 1 << 4;

const RCX: Mask = 1 << 1;

/// What an instruction does with the general registers. Those in neither set keep their values and do not matter to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Those that it may read, and those that it may write without being in `overwrites`.
    pub uses: Mask,
    /// Those that it writes whole, whatever they held. A write of 32 bits is one, since it clears the rest.
    pub overwrites: Mask,
}

/// What `inst` does with the general registers, apart from where it branches to.
#[must_use]
pub fn effects(inst: &Inst) -> Effects {
    of(&inst.raw())
}

/// All that any instruction uses without naming it, but for RSP: RAX, RCX, RDX, RBX, RBP, RSI, RDI, and R11 of `syscall`.
const UNNAMED: Mask = 0b1000_1110_1111;

pub(super) fn of(raw: &Instruction) -> Effects {
    let operands = |from: u32| {
        let named = (from..raw.op_count()).filter(|&op| raw.op_kind(op) == OpKind::Register);
        named.map(|op| bit(raw.op_register(op))).fold(0, |set, bit| set | bit)
    };
    let address = bit(raw.memory_base()) | bit(raw.memory_index());
    let others = address | unnamed(raw);
    let first = raw.op0_register();
    let whole =
        raw.op_count() > 0 && raw.op_kind(0) == OpKind::Register && (first.is_gpr32() || first.is_gpr64());
    if whole && clears(raw) {
        return Effects { uses: others, overwrites: bit(first) & !others };
    }
    if whole && replaces(raw.mnemonic(), raw.op_count()) {
        let uses = operands(1) | others;
        return Effects { uses, overwrites: bit(first) & !uses };
    }
    Effects { uses: operands(0) | others, overwrites: 0 }
}

fn bit(register: Register) -> Mask {
    if register.is_gpr() { 1 << register.full_register().number() } else { 0 }
}

/// `xor r, r` or `sub r, r`.
fn clears(raw: &Instruction) -> bool {
    matches!(raw.mnemonic(), Mnemonic::Xor | Mnemonic::Sub)
        && raw.op1_kind() == OpKind::Register
        && raw.op0_register() == raw.op1_register()
}

/// The first operand, a register, gets a value that does not depend on what it held. `lzcnt` and `tzcnt` are left out:
/// a processor without them runs `bsr` and `bsf`, which leave the register alone if the source is 0.
fn replaces(mnemonic: Mnemonic, operands: u32) -> bool {
    match mnemonic {
        Mnemonic::Imul => operands == 3,
        Mnemonic::Mov
        | Mnemonic::Movzx
        | Mnemonic::Movsx
        | Mnemonic::Movsxd
        | Mnemonic::Movbe
        | Mnemonic::Lea
        | Mnemonic::Pop
        | Mnemonic::Popcnt
        | Mnemonic::Rorx
        | Mnemonic::Movd
        | Mnemonic::Movq
        | Mnemonic::Vmovd
        | Mnemonic::Vmovq
        | Mnemonic::Movmskps
        | Mnemonic::Movmskpd
        | Mnemonic::Pmovmskb
        | Mnemonic::Cvtsd2si
        | Mnemonic::Cvtss2si
        | Mnemonic::Cvttsd2si
        | Mnemonic::Cvttss2si
        | Mnemonic::Vcvtsd2si
        | Mnemonic::Vcvtss2si
        | Mnemonic::Vcvttsd2si
        | Mnemonic::Vcvttss2si => true,
        _ => false,
    }
}

/// The registers that it uses without naming them.
fn unnamed(raw: &Instruction) -> Mask {
    if raw.is_jcc_short_or_near() {
        return 0;
    }
    match raw.mnemonic() {
        Mnemonic::Loop | Mnemonic::Loope | Mnemonic::Loopne | Mnemonic::Jrcxz | Mnemonic::Jecxz => RCX,
        Mnemonic::Push
        | Mnemonic::Pop
        | Mnemonic::Call
        | Mnemonic::Ret
        | Mnemonic::Pushf
        | Mnemonic::Pushfq
        | Mnemonic::Popf
        | Mnemonic::Popfq => RSP,
        Mnemonic::Enter | Mnemonic::Leave => RSP | UNNAMED,
        // The kernel may look at any.
        Mnemonic::Int | Mnemonic::Syscall => Mask::MAX,
        Mnemonic::Imul if raw.op_count() > 1 => 0,
        mnemonic
            if names_all(mnemonic)
                || replaces(mnemonic, raw.op_count())
                || (of_vectors(raw) && !uses_more(mnemonic)) =>
        {
            0
        }
        _ => UNNAMED,
    }
}

/// An integer instruction that names every register it uses.
fn names_all(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Mov
            | Mnemonic::Movzx
            | Mnemonic::Movsx
            | Mnemonic::Movsxd
            | Mnemonic::Movbe
            | Mnemonic::Lea
            | Mnemonic::Add
            | Mnemonic::Adc
            | Mnemonic::Sub
            | Mnemonic::Sbb
            | Mnemonic::And
            | Mnemonic::Or
            | Mnemonic::Xor
            | Mnemonic::Cmp
            | Mnemonic::Test
            | Mnemonic::Inc
            | Mnemonic::Dec
            | Mnemonic::Neg
            | Mnemonic::Not
            | Mnemonic::Xchg
            | Mnemonic::Xadd
            | Mnemonic::Bt
            | Mnemonic::Bts
            | Mnemonic::Btr
            | Mnemonic::Btc
            | Mnemonic::Bsf
            | Mnemonic::Bsr
            | Mnemonic::Popcnt
            | Mnemonic::Lzcnt
            | Mnemonic::Tzcnt
            | Mnemonic::Bswap
            | Mnemonic::Shl
            | Mnemonic::Shr
            | Mnemonic::Sar
            | Mnemonic::Sal
            | Mnemonic::Rol
            | Mnemonic::Ror
            | Mnemonic::Rcl
            | Mnemonic::Rcr
            | Mnemonic::Shld
            | Mnemonic::Shrd
            | Mnemonic::Rorx
            | Mnemonic::Sarx
            | Mnemonic::Shlx
            | Mnemonic::Shrx
            | Mnemonic::Andn
            | Mnemonic::Crc32
            | Mnemonic::Adcx
            | Mnemonic::Adox
            | Mnemonic::Nop
            | Mnemonic::Endbr64
            | Mnemonic::Jmp
            | Mnemonic::Prefetchnta
            | Mnemonic::Prefetcht0
            | Mnemonic::Prefetcht1
            | Mnemonic::Prefetcht2
            | Mnemonic::Prefetchw
            | Mnemonic::Ldmxcsr
            | Mnemonic::Stmxcsr
            | Mnemonic::Fldcw
            | Mnemonic::Fnstcw
            | Mnemonic::Fnstsw
    ) || conditional(mnemonic)
}

/// `cmovcc` and `setcc`.
fn conditional(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Cmova
            | Mnemonic::Cmovae
            | Mnemonic::Cmovb
            | Mnemonic::Cmovbe
            | Mnemonic::Cmove
            | Mnemonic::Cmovg
            | Mnemonic::Cmovge
            | Mnemonic::Cmovl
            | Mnemonic::Cmovle
            | Mnemonic::Cmovne
            | Mnemonic::Cmovno
            | Mnemonic::Cmovnp
            | Mnemonic::Cmovns
            | Mnemonic::Cmovo
            | Mnemonic::Cmovp
            | Mnemonic::Cmovs
            | Mnemonic::Seta
            | Mnemonic::Setae
            | Mnemonic::Setb
            | Mnemonic::Setbe
            | Mnemonic::Sete
            | Mnemonic::Setg
            | Mnemonic::Setge
            | Mnemonic::Setl
            | Mnemonic::Setle
            | Mnemonic::Setne
            | Mnemonic::Setno
            | Mnemonic::Setnp
            | Mnemonic::Setns
            | Mnemonic::Seto
            | Mnemonic::Setp
            | Mnemonic::Sets
    )
}

/// It names a register that is not a general one: such instructions name the general ones that they use as well.
fn of_vectors(raw: &Instruction) -> bool {
    (0..raw.op_count()).filter(|&op| raw.op_kind(op) == OpKind::Register).map(|op| raw.op_register(op)).any(
        |register| register.is_vector_register() || register.is_mm() || register.is_st() || register.is_k(),
    )
}

/// The instructions on vectors that also use RAX, RCX, RDX or RDI.
fn uses_more(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Pcmpestri
            | Mnemonic::Pcmpestri64
            | Mnemonic::Pcmpestrm
            | Mnemonic::Pcmpestrm64
            | Mnemonic::Pcmpistri
            | Mnemonic::Pcmpistrm
            | Mnemonic::Vpcmpestri
            | Mnemonic::Vpcmpestri64
            | Mnemonic::Vpcmpestrm
            | Mnemonic::Vpcmpestrm64
            | Mnemonic::Vpcmpistri
            | Mnemonic::Vpcmpistrm
            | Mnemonic::Loadiwkey
            | Mnemonic::Maskmovq
            | Mnemonic::Maskmovdqu
            | Mnemonic::Vmaskmovdqu
    )
}

#[cfg(test)]
mod tests {
    use iced_x86::{Decoder, DecoderOptions, InstructionInfoFactory, OpAccess};

    use super::*;
    use crate::{
        CodeAddr,
        x86_64::{Flow, decode, opcodes::each_opcode},
    };

    fn decoded(bytes: &[u8]) -> Option<Instruction> {
        let raw = Decoder::with_ip(64, bytes, 0x1000, DecoderOptions::NONE).decode();
        (!raw.is_invalid()).then_some(raw)
    }

    /// Another table's answer: what is touched in any way, and what is written for certain without being read.
    fn judge(factory: &mut InstructionInfoFactory, raw: &Instruction) -> (Mask, Mask) {
        let (mut read, mut written, mut touched) = (0, 0, 0);
        for used in factory.info(raw).used_registers() {
            let register = used.register();
            let bit = bit(register);
            touched |= bit;
            match used.access() {
                OpAccess::Write if register.is_gpr32() || register.is_gpr64() => written |= bit,
                OpAccess::None | OpAccess::NoMemAccess => {}
                _ => read |= bit,
            }
        }
        (touched, written & !read)
    }

    /// Every opcode with every ModRM under the prefixes that choose among instructions, and noise.
    #[test]
    fn nothing_is_used_or_overwritten_that_another_table_does_not_know() {
        let mut factory = InstructionInfoFactory::new();
        let mut seed = 1u64;
        let mut random = || {
            seed = seed.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            seed >> 33
        };
        let (mut seen, mut whole) = (0, 0);
        let mut check = |bytes: &[u8]| {
            let Ok(inst) = decode(CodeAddr(0x1000), bytes) else { return };
            let (false, Some(raw)) = (matches!(inst.flow(), Flow::Unsupported(_)), decoded(bytes)) else {
                return;
            };
            let ours = effects(&inst);
            let (touched, overwritten) = judge(&mut factory, &raw);
            assert_eq!(touched & !(ours.uses | ours.overwrites), 0, "{raw:?} {ours:x?} touches {touched:x}");
            assert_eq!(ours.overwrites & !overwritten, 0, "{raw:?} {ours:x?} overwrites {overwritten:x}");
            seen += 1;
            whole += u32::from(ours.overwrites != 0);
        };
        each_opcode(&[], |bytes| {
            bytes.extend((0..8).map(|_| random() as u8));
            check(bytes);
        });
        for _ in 0..2_000_000 {
            let mut bytes = [0; 15].map(|_: u8| random() as u8);
            match random() % 4 {
                0 => bytes[0] = 0x62,
                1 => bytes[0] = 0xc4,
                2 => bytes[0] = 0xc5,
                _ => bytes[0] = 0x8f,
            }
            check(&bytes);
        }
        assert!(seen > 1_000_000 && whole > 50_000, "{seen} {whole}");
    }

    #[test]
    fn partial_writes_keep_the_rest() {
        let of = |bytes: &[u8]| of(&decoded(bytes).unwrap());
        // mov al, 1; mov ax, 1; mov eax, 1
        assert_eq!(of(&[0xb0, 1]), Effects { uses: 1, overwrites: 0 });
        assert_eq!(of(&[0x66, 0xb8, 1, 0]), Effects { uses: 1, overwrites: 0 });
        assert_eq!(of(&[0xb8, 1, 0, 0, 0]), Effects { uses: 0, overwrites: 1 });
        // xor edx, edx; mov rax, [rax]; lea r9, [rcx + rdi]
        assert_eq!(of(&[0x31, 0xd2]), Effects { uses: 0, overwrites: 4 });
        assert_eq!(of(&[0x48, 0x8b, 0x00]), Effects { uses: 1, overwrites: 0 });
        assert_eq!(of(&[0x4c, 0x8d, 0x0c, 0x39]), Effects { uses: 0x82, overwrites: 0x200 });
        // cpuid: unknown here, so all that could be used without a name
        assert_eq!(of(&[0x0f, 0xa2]), Effects { uses: UNNAMED, overwrites: 0 });
    }
}

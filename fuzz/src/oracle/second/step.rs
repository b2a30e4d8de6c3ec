//! What an instruction of Arm's does to registers, and where it goes on, by Capstone's account.

use capstone::{Capstone, RegId, arch::arm::ArmCC};
use grapnel_relocator::{CodeAddr, Isa};

/// General registers, as bits by number.
pub(super) type Set = u32;

/// What a kernel reads of a request: X0 to X8, or R0 to R7.
const fn asked(isa: Isa) -> Set {
    match isa {
        Isa::Aarch64 => 0x1ff,
        _ => 0xff,
    }
}

/// Where an instruction goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Goes {
    Next,
    Jump(CodeAddr),
    /// To the next one or there.
    Branch(CodeAddr),
    /// A call of this address, or of one that only the registers tell.
    Call(Option<CodeAddr>),
    Return,
    Elsewhere,
}

/// An instruction as Capstone has it.
pub(super) struct Step {
    pub(super) reads: Set,
    /// It writes these, if its condition holds.
    pub(super) changes: Set,
    /// It writes these whole, under no condition.
    pub(super) writes: Set,
    pub(super) goes: Goes,
    /// It asks the kernel.
    pub(super) asks: bool,
    /// It may not be executed, and go on with the next.
    pub(super) conditional: bool,
}

impl Step {
    /// The instruction at an address, of these bytes; `None` if Capstone does not know it.
    pub(super) fn of(capstone: &Capstone, isa: Isa, at: CodeAddr, bytes: &[u8]) -> Option<Self> {
        let found = capstone.disasm_count(bytes, at.0, 1).ok()?;
        let insn = found.first()?;
        let detail = capstone.insn_detail(insn).ok()?;
        let bit = |register: &RegId| bit(isa, &capstone.reg_name(*register).unwrap_or_default());
        let set = |registers: &[RegId]| registers.iter().map(bit).fold(0, |all, bit| all | bit);
        let (mut reads, mut writes) = (set(detail.regs_read()), set(detail.regs_write()));
        let mnemonic = insn.mnemonic()?;
        let target = || {
            let text = insn.op_str()?.rsplit(['#', ' ']).next()?;
            u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok().map(CodeAddr)
        };
        let word = u32::from_le_bytes(*bytes.first_chunk()?);
        (reads, writes) = match isa {
            Isa::Aarch64 => mend(word, reads, writes),
            _ => mend_a32(word, reads, writes),
        };
        let arch = detail.arch_detail();
        let (goes, conditional) = match arch.arm() {
            None => (by_name(mnemonic, target, at.add(4)), false),
            Some(arm) => {
                let always = matches!(arm.cc(), ArmCC::ARM_CC_AL | ArmCC::ARM_CC_INVALID);
                (by_name_a32(word, mnemonic, insn.op_str()?, at.add(8), target), !always)
            }
        };
        let asks = mnemonic.starts_with("svc");
        if asks {
            reads |= asked(isa);
        }
        let (changes, writes) = (writes, if conditional { 0 } else { writes });
        Some(Self { reads, changes, writes, goes, asks, conditional })
    }
}

/// A general register's bit.
fn bit(isa: Isa, name: &str) -> Set {
    let number = match (isa, name) {
        (Isa::Aarch64, "fp") => Some(29),
        (Isa::Aarch64, "lr") => Some(30),
        (Isa::Aarch64, name) => name.strip_prefix(['x', 'w']).and_then(|number| number.parse().ok()),
        (_, "sb") => Some(9),
        (_, "sl") => Some(10),
        (_, "fp") => Some(11),
        (_, "ip") => Some(12),
        (_, "sp") => Some(13),
        (_, "lr") => Some(14),
        (_, "pc") => Some(15),
        (_, name) => name.strip_prefix('r').and_then(|number| number.parse().ok()),
    };
    number.map_or(0, |number: u32| 1 << number)
}

/// What Capstone 5 has wrong of AArch64 registers, put right by the manual (DDI 0487, C6.2).
fn mend(word: u32, reads: Set, writes: Set) -> (Set, Set) {
    const GENERAL: Set = (1 << 31) - 1;
    /// Instructions by mask and value of which it misses that they read registers, and in which fields these are.
    const MISSED: [(u32, u32, &[u32]); 3] = [
        (0xbe80_0000, 0x0c80_0000, &[5, 16]), // LD1 and its kin, with a register added
        (0x7f26_0000, 0x1e02_0000, &[5]),     // SCVTF and UCVTF of a fixed point
        (0x7f26_fc00, 0x1e22_0000, &[5]),     // the same without
    ];
    let field = |place: u32| 1 << (word >> place & 31) & GENERAL;
    let (rd, rn, rs) = (field(0), field(5), field(16));
    match word {
        // SBFM and UBFM, and ADDS and SUBS of an immediate, overwrite Rd whole.
        _ if word & 0x3f80_0000 == 0x1300_0000 && word >> 29 & 1 == 0 => (rn, rd),
        _ if word & 0x3f00_0000 == 0x3100_0000 => (rn, rd),
        // GMI, SUBP, SUBPS, PACGA and what else has two sources.
        _ if word & 0x5fe0_0000 == 0x1ac0_0000 => (rn | rs, rd),
        // FCVTZS and FCVTZU to a fixed point, the same without one and their kin, FJCVTZS and FMOV to a general register.
        _ if word & 0x7f20_fc00 == 0x1e20_0000 && matches!(word >> 16 & 7, 0 | 1 | 4..=6) => (0, rd),
        _ if word & 0x7f3e_0000 == 0x1e18_0000 => (0, rd),
        // CMP, CMN and TST write none.
        _ if word & 0x3f00_001f == 0x2b00_001f || word & 0x7f20_001f == 0x6a00_001f => (rn | rs, 0),
        _ if word & 0x7f80_001f == 0x7200_001f => (rn, 0),
        // SMOV and UMOV.
        _ if word & 0xbfe0_ec00 == 0x0e00_2c00 => (0, rd),
        // ADDG and SUBG.
        _ if word & 0xbfc0_c000 == 0x9180_0000 => (rn, rd),
        // ST1 and its kin of one element, with a register added.
        _ if word & 0xbfe0_0000 == 0x0d80_0000 => (rn | rs, rn),
        // LDAR and LDLAR.
        _ if word & 0x3fe0_0000 == 0x08c0_0000 => (rn, rd),
        // LDADD and its kin, and SWP, load Rt.
        _ if word & 0x3b20_8c00 == 0x3820_0000 || word & 0x3b20_fc00 == 0x3820_8000 => (rn | rs, rd),
        // Registers Rt to Rt + 7: LD64B; ST64B, ST64BV and ST64BV0, of which the last two write Rs.
        _ if word & 0xffff_fc00 == 0xf83f_d000 => (rn, 0xff << (word & 31) & GENERAL),
        _ if word & 0xffff_fc00 == 0xf83f_9000 => (rn | 0xff << (word & 31) & GENERAL, 0),
        _ if word & 0xffe0_ec00 == 0xf820_a000 => (rn | 0xff << (word & 31) & GENERAL, rs),
        _ => {
            let missed = MISSED.iter().filter(|&&(mask, value, _)| word & mask == value);
            let fields = missed.flat_map(|&(_, _, fields)| fields);
            (reads | fields.fold(0, |all, &place| all | field(place)), writes)
        }
    }
}

/// The same of A32 (DDI 0406, A8.8): STM reads the registers of its list, and a base that moves is written.
const fn mend_a32(word: u32, reads: Set, writes: Set) -> (Set, Set) {
    if word >> 28 == 15 {
        return (reads, writes);
    }
    let base = 1 << (word >> 16 & 15);
    let (before, moves) = (word >> 24 & 1 == 1, word >> 21 & 1 == 1);
    let list = if word >> 20 & 1 == 0 { word & 0xffff } else { 0 };
    match word >> 25 & 7 {
        4 => (reads | list, if moves { writes | base } else { writes }),
        6 if moves => (reads, writes | base),
        2 | 3 if (word >> 25 & 1 == 0 || word >> 4 & 1 == 0) && (!before || moves) => (reads, writes | base),
        // Shifts by a register, where BX, CLZ, QADD and their kin have no such field; MLA and MLS.
        0 if word & 0x90 == 0x10 && word & 0x0190_0000 != 0x0100_0000 => {
            (reads | 1 << (word >> 8 & 15), writes)
        }
        0 if word & 0x0fa0_00f0 == 0x0020_0090 => (reads | 1 << (word >> 12 & 15), writes),
        0 if word & 0x90 == 0x90 && word & 0x60 != 0 && (!before || moves) => (reads, writes | base),
        _ => (reads, writes),
    }
}

/// Where an AArch64 instruction of this name goes on.
fn by_name(mnemonic: &str, target: impl Fn() -> Option<CodeAddr>, next: CodeAddr) -> Goes {
    let direct = |goes: fn(CodeAddr) -> Goes| target().map_or(Goes::Elsewhere, goes);
    match mnemonic {
        "b" | "b.al" | "b.nv" | "bc.al" | "bc.nv" => direct(Goes::Jump),
        // It asks for its address.
        "bl" if target() == Some(next) => Goes::Next,
        "bl" => Goes::Call(target()),
        "cbz" | "cbnz" | "tbz" | "tbnz" => direct(Goes::Branch),
        _ if mnemonic.starts_with("b.") || mnemonic.starts_with("bc.") => direct(Goes::Branch),
        "blr" | "blraa" | "blraaz" | "blrab" | "blrabz" => Goes::Call(None),
        // Whole names: BRKA and BRKB of SVE go on.
        "br" | "braa" | "braaz" | "brab" | "brabz" => Goes::Elsewhere,
        "ret" | "retaa" | "retab" => Goes::Return,
        "udf" | "hlt" | "eret" | "eretaa" | "eretab" | "hvc" | "smc" | "drps" => Goes::Elsewhere,
        "dcps1" | "dcps2" | "dcps3" => Goes::Elsewhere,
        _ => Goes::Next,
    }
}

/// The constant in the lowest 12 bits: 8 of them, rotated (DDI 0406, A5.2.4).
const fn modified_immediate(word: u32) -> i64 {
    (word & 0xff).rotate_right(word >> 7 & 30) as i64
}

/// Where an A32 instruction of this name, with these operands, goes on.
fn by_name_a32(
    word: u32,
    mnemonic: &str,
    operands: &str,
    pc: CodeAddr,
    target: impl Fn() -> Option<CodeAddr>,
) -> Goes {
    // Behind a name stands the condition.
    let is = |name: &str| {
        mnemonic.strip_prefix(name).is_some_and(|cond| {
            matches!(
                cond,
                "" | "eq"
                    | "ne"
                    | "hs"
                    | "lo"
                    | "mi"
                    | "pl"
                    | "vs"
                    | "vc"
                    | "hi"
                    | "ls"
                    | "ge"
                    | "lt"
                    | "gt"
                    | "le"
            )
        })
    };
    let listed = operands.ends_with("pc}");
    let first = operands.starts_with("pc,")
        && !["str", "stm", "ldm", "tst", "teq", "cmp", "cmn", "vldm", "vstm", "fldm", "fstm"]
            .iter()
            .any(|name| mnemonic.starts_with(name));
    let loads_pc = first || listed && (mnemonic.starts_with("ldm") || is("pop"));
    // With bit 0 set it goes to T32 (DDI 0406, A2.3.1: ALUWritePC).
    let to = |offset: i64| match CodeAddr(pc.offset(offset).0 & 0xffff_ffff) {
        target if target.0 % 4 == 0 => Goes::Jump(target),
        _ => Goes::Elsewhere,
    };
    match mnemonic {
        _ if is("bl") || is("blx") => Goes::Call(None),
        _ if is("b") => target().map_or(Goes::Elsewhere, Goes::Jump),
        _ if is("bx") && operands == "lr" || is("pop") && listed => Goes::Return,
        _ if is("bx") && operands == "pc" || is("mov") && operands == "pc, pc" => to(0),
        // ADR too, of which it tells no address.
        _ if word >> 28 != 15 && word & 0x0fff_f000 == 0x028f_f000 => to(modified_immediate(word)),
        _ if word >> 28 != 15 && word & 0x0fff_f000 == 0x024f_f000 => to(-modified_immediate(word)),
        _ if is("ldr") && operands.starts_with("pc, [sp], #") => Goes::Return,
        _ if is("mov") && operands == "pc, lr" => Goes::Return,
        _ if mnemonic.starts_with("ldm")
            && listed
            && (operands.starts_with("sp") || operands.contains("sp,")) =>
        {
            Goes::Return
        }
        _ if loads_pc || is("bx") || is("bxj") => Goes::Elsewhere,
        _ if is("udf") || is("bkpt") || is("hvc") || is("smc") => Goes::Elsewhere,
        _ if mnemonic.starts_with("rfe") || mnemonic.starts_with("srs") => Goes::Elsewhere,
        _ => Goes::Next,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::second::Second;
    use fastrand::Rng;
    use grapnel_arch::{a32, aarch64};

    /// What our decoder says that an instruction reads, writes whole, and may write, and whether it goes on with the next;
    /// `None` where it refuses it.
    fn ours(isa: Isa, bytes: &[u8]) -> Option<([Set; 3], bool)> {
        let at = CodeAddr(0);
        if isa == Isa::Aarch64 {
            let inst = aarch64::decode(at, bytes).ok()?;
            let known = !matches!(inst.flow(), aarch64::Flow::Unsupported(_) | aarch64::Flow::Undefined);
            let effects = inst.effects();
            let next = inst.flow() == aarch64::Flow::Next;
            known.then_some(([effects.reads, effects.writes, effects.changes], next))
        } else {
            let inst = a32::decode(at, bytes).ok()?;
            let known = !matches!(inst.flow(), a32::Flow::Unsupported(_) | a32::Flow::Undefined);
            let (reads, writes) = (inst.uses().reads.into(), inst.uses().writes.into());
            let next = inst.flow() == a32::Flow::Next;
            known.then_some(([reads, if inst.cond().is_always() { writes } else { 0 }, writes], next))
        }
    }

    /// A read that only Capstone sees would be one that the relocator overlooks, and a write that only it misses an alarm
    /// about correct code.
    #[test]
    fn neither_account_of_an_instruction_is_bolder() {
        let second = Second::new().unwrap();
        let mut rng = Rng::with_seed(5);
        let mut compared = 0;
        for number in 0..4_000_000 {
            let (isa, capstone, general) = match number % 2 {
                0 => (Isa::Aarch64, &second.aarch64, (1 << 31) - 1),
                _ => (Isa::A32, &second.a32, 0x7fff),
            };
            let bytes = rng.u32(..).to_le_bytes();
            let Some(([reads, writes, changes], next)) = ours(isa, &bytes) else { continue };
            let Some(step) = Step::of(capstone, isa, CodeAddr(0), &bytes) else { continue };
            let text = || grapnel_arch::listing(isa, CodeAddr(0), &bytes).remove(0).text;
            if next {
                assert_eq!(step.goes, Goes::Next, "only ours goes on with the next: {}", text());
            }
            if step.asks || matches!(step.goes, Goes::Call(_) | Goes::Return) {
                continue;
            }
            compared += 1;
            assert_eq!(step.reads & !reads & general, 0, "only Capstone has it read: {}", text());
            assert_eq!(writes & !step.writes & general, 0, "Capstone misses a write: {}", text());
            // The rest of A32's instructions are taken to write nothing for sure, and anything perhaps.
            let more = if isa == Isa::Aarch64 { step.changes & !changes & general } else { 0 };
            assert_eq!(more, 0, "only Capstone has it written: {}", text());
        }
        assert!(compared > 1_000_000, "{compared}");
    }
}

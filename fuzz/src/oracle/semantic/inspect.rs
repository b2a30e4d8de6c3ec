//! What the judge must know of an instruction: its length, and whether it calls or asks the kernel.

use std::borrow::Cow;

use grapnel_relocator::Isa;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register, RflagsBits};

/// What is special about an instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Kind {
    #[default]
    Plain,
    /// It leaves a return address behind.
    Call,
    /// x86-64 `syscall`, which the emulator does not have.
    Syscall,
    /// x86-64 `xbegin`, which the emulator does not have, and its fallback.
    Xbegin { fallback: u64 },
}

/// What an x86-64 instruction does with the flags, as in the register. Those that the manual leaves undefined depend on
/// how the emulator translated what precedes, as on a processor's model.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Flags {
    pub(super) reads: u64,
    /// It gives these a value, whatever its operands are.
    pub(super) defines: u64,
    pub(super) undefines: u64,
}

impl Flags {
    fn of(inst: &Instruction) -> Self {
        let last = inst.op_count().saturating_sub(1);
        // By a count of 0 nothing is changed.
        let counts = inst.op_register(last) == Register::CL && inst.rflags_undefined() != 0
            || inst.has_rep_prefix()
            || inst.has_repne_prefix();
        let undefined = inst.rflags_undefined();
        let defines = if counts { 0 } else { register(inst.rflags_modified() & !undefined) };
        Self { reads: register(inst.rflags_read()), defines, undefines: register(undefined) }
    }
}

/// The decoder's flags where the register has them.
fn register(flags: u32) -> u64 {
    const PLACES: [(u32, u64); 7] = [
        (RflagsBits::CF, 1),
        (RflagsBits::PF, 1 << 2),
        (RflagsBits::AF, 1 << 4),
        (RflagsBits::ZF, 1 << 6),
        (RflagsBits::SF, 1 << 7),
        (RflagsBits::DF, 1 << 10),
        (RflagsBits::OF, 1 << 11),
    ];
    PLACES.iter().filter(|&&(flag, _)| flags & flag != 0).fold(0, |all, &(_, place)| all | place)
}

/// An instruction, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Inst {
    /// Its length; 0 where none begins.
    pub(super) len: u8,
    /// It goes nowhere but to the next instruction, or to an address that its bits tell.
    pub(super) direct: bool,
    /// Under which condition it is executed (A32, T32).
    pub(super) cond: u8,
    pub(super) kind: Kind,
    /// A call to an address in a register.
    pub(super) indirect: bool,
    pub(super) flags: Flags,
}

/// The instructions of code, by offset. Those at `starts` begin there, whatever precedes them.
pub(super) fn sweep(isa: Isa, addr: u64, code: &[u8], starts: &[usize]) -> Vec<Inst> {
    let mut insts = vec![Inst::default(); code.len()];
    let ends = starts.iter().skip(1).copied().chain([code.len()]);
    for (&start, end) in starts.iter().zip(ends) {
        let mut at = start;
        while at < end.min(code.len()) {
            insts[at] = inspect(isa, addr.wrapping_add(at as u64), &code[at..]);
            at += usize::from(insts[at].len.max(1));
        }
    }
    if isa == Isa::T32 {
        for (at, cond) in it_blocks(code).0 {
            insts[at].cond = cond;
        }
    }
    insts
}

/// A condition holds with these flags (DDI 0487, C1.2.4; in A32 and T32 the same).
pub(super) fn holds(cond: u8, flags: u64) -> bool {
    let flag = |place: u32| flags >> place & 1 == 1;
    let (n, z, c, v) = (flag(31), flag(30), flag(29), flag(28));
    let base = match cond >> 1 {
        0 => z,
        1 => c,
        2 => n,
        3 => v,
        4 => c && !z,
        5 => n == v,
        6 => n == v && !z,
        _ => return true,
    };
    base != (cond & 1 == 1)
}

fn inspect(isa: Isa, addr: u64, code: &[u8]) -> Inst {
    match isa {
        Isa::X86_64 => x86_64(addr, code),
        Isa::Aarch64 => {
            let word = word(code);
            let indirect = word & 0xfeff_f000 == 0xd63f_0000;
            let call = indirect || word & 0xfc00_0000 == 0x9400_0000;
            // BR, BLR, RET, and their forms that authenticate.
            let direct = word & 0xfe00_0000 != 0xd600_0000;
            Inst { len: 4, kind: kind(call), direct, indirect, ..Inst::default() }
        }
        Isa::A32 => {
            let word = word(code);
            let conditional = word >> 28 != 15;
            let indirect = conditional && word & 0x0fff_fff0 == 0x012f_ff30;
            let direct =
                conditional && word & 0x0f00_0000 == 0x0b00_0000 || word & 0xfe00_0000 == 0xfa00_0000;
            let (kind, direct) = (kind(direct || indirect), !conditional || !writes_pc(word));
            Inst { len: 4, kind, direct, cond: (word >> 28) as u8, indirect, ..Inst::default() }
        }
        Isa::T32 => {
            let [first, second] = halves(code);
            let indirect = first & 0xff87 == 0x4780;
            let call = indirect || first & 0xf800 == 0xf000 && second & 0xc000 == 0xc000;
            let to_pc = match first {
                // BX, BLX; ADD and MOV to the PC, but for those of the PC itself; POP.
                0x44ff | 0x46ff => false,
                _ if first & 0xff00 == 0x4700 || first & 0xfd87 == 0x4487 || first & 0xff00 == 0xbd00 => true,
                // TBB and TBH; LDR and LDM with the PC among what they load.
                _ if first & 0xfff0 == 0xe8d0 && second & 0xffe0 == 0xf000 => true,
                _ if first & 0xff70 == 0xf850 => second >> 12 == 15,
                _ => first & 0xfe50 == 0xe810 && second >> 15 == 1,
            };
            let len = if is_wide(first) { 4 } else { 2 };
            Inst { len, direct: !to_pc, cond: ALWAYS, kind: kind(call), indirect, ..Inst::default() }
        }
    }
}

/// A conditional A32 instruction writes what it computes or loads to the PC. Sums of the PC and a constant are as good as
/// branches.
const fn writes_pc(word: u32) -> bool {
    let to_pc = word >> 12 & 15 == 15;
    // Without a carry, of which ADC, SBC and RSC add one.
    let of_pc = word & 0x020f_0000 == 0x020f_0000 && !matches!(word >> 21 & 15, 5..=7);
    match word >> 25 & 7 {
        // BX, BXJ and BLX stand among comparisons, which write no register.
        0 | 1 if word >> 23 & 3 == 2 => word & 0x0fff_ffc0 == 0x012f_ff00,
        0 | 1 => to_pc && !of_pc,
        2 | 3 => to_pc && word >> 20 & 1 == 1,
        4 => word & 0x0010_8000 == 0x0010_8000,
        _ => false,
    }
}

/// The condition of what is always executed.
pub(super) const ALWAYS: u8 = 14;

const fn kind(call: bool) -> Kind {
    if call { Kind::Call } else { Kind::Plain }
}

pub(super) const fn is_wide(first: u16) -> bool {
    first >> 11 >= 0b11101
}

pub(super) fn word(code: &[u8]) -> u32 {
    code.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

pub(super) fn halves(code: &[u8]) -> [u16; 2] {
    let half = |at: usize| {
        code.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |bytes| u16::from_le_bytes(*bytes))
    };
    [half(0), half(2)]
}

fn x86_64(addr: u64, code: &[u8]) -> Inst {
    let inst = Decoder::with_ip(64, code, addr, DecoderOptions::NONE).decode();
    let kind = match (inst.mnemonic(), inst.flow_control()) {
        (Mnemonic::Syscall, _) => Kind::Syscall,
        (Mnemonic::Xbegin, _) => Kind::Xbegin { fallback: inst.near_branch_target() },
        (_, FlowControl::Call | FlowControl::IndirectCall) => Kind::Call,
        _ => Kind::Plain,
    };
    let direct = !matches!(
        inst.flow_control(),
        FlowControl::IndirectBranch | FlowControl::IndirectCall | FlowControl::Return
    );
    Inst { len: inst.len() as u8, direct, kind, flags: Flags::of(&inst), ..Inst::default() }
}

/// Code in which the emulator knows what it can know under another name: `BC.cond` is `B.cond` with another hint on
/// how likely it is taken (FEAT_HBC), which is bit 4.
pub(super) fn known(isa: Isa, code: &[u8]) -> Cow<'_, [u8]> {
    let hinted = |code: &[u8]| word(code) & 0xff00_0010 == 0x5400_0010;
    if isa != Isa::Aarch64 || !code.chunks(4).any(hinted) {
        return code.into();
    }
    let mut known = code.to_vec();
    known.chunks_mut(4).filter(|code| hinted(code)).for_each(|code| code[0] &= !0x10);
    known.into()
}

/// Whether code can read or write a vector register: never too few.
pub(super) fn uses_vectors(isa: Isa, code: &[u8]) -> bool {
    match isa {
        Isa::X86_64 => Decoder::new(64, code, DecoderOptions::NONE).iter().any(|inst| {
            let register = |register: Register| register.is_vector_register();
            (0..inst.op_count()).any(|op| register(inst.op_register(op)))
                || matches!(
                    inst.mnemonic(),
                    Mnemonic::INVALID | Mnemonic::Fxrstor | Mnemonic::Fxrstor64 | Mnemonic::Xrstor
                )
        }),
        // Every instruction of SIMD, FP and SVE has bit 26 set (Arm ARM, C4.1).
        Isa::Aarch64 => {
            code.chunks(4).any(|code| word(code) & 0x7c00_0000 != 0x1400_0000 && word(code) >> 26 & 1 == 1)
        }
        // Coprocessors 10 and 11, and the unconditional space of Advanced SIMD (F4.1).
        Isa::A32 => code.chunks(4).map(word).any(|word| {
            word >> 25 & 7 == 6
                || word >> 24 & 15 == 14
                || word >> 28 == 15 && matches!(word >> 25 & 7, 1 | 2 | 7)
        }),
        Isa::T32 => {
            let mut at = 0;
            while at < code.len() {
                let [first, _] = halves(&code[at..]);
                if matches!(first >> 8, 0xec..=0xef | 0xf9 | 0xfc..=0xff) {
                    return true;
                }
                at += if is_wide(first) { 4 } else { 2 };
            }
            false
        }
    }
}

/// The offsets of T32 instructions that an IT instruction makes conditional.
pub(super) fn conditional(code: &[u8]) -> Vec<usize> {
    it_blocks(code).0.into_iter().map(|(at, _)| at).collect()
}

/// The offset of the IT instruction whose block the code's end cuts, if there is one.
pub(super) fn cut_by(code: &[u8]) -> Option<usize> {
    it_blocks(code).1
}

/// The offset of the IT instruction that the one at this offset is, or whose block it is in.
pub(super) fn block_of(code: &[u8], offset: usize) -> Option<usize> {
    let (mut left, mut at, mut block) = (0, 0, None);
    while at <= offset && at < code.len() {
        let [first, _] = halves(&code[at..]);
        if left > 0 {
            left -= 1;
        } else if first & 0xff00 == 0xbf00 && first & 15 != 0 {
            block = Some(at);
            left = 4 - (first & 15).trailing_zeros();
        } else {
            block = None;
        }
        if at == offset {
            return block;
        }
        at += if is_wide(first) { 4 } else { 2 };
    }
    None
}

/// The members of IT blocks with their conditions, and the IT of the block that the end cuts.
fn it_blocks(code: &[u8]) -> (Vec<(usize, u8)>, Option<usize>) {
    // ITSTATE, which is shifted as the block is gone through (DDI 0406, A2.5.2).
    let (mut inside, mut state, mut at, mut block) = (Vec::new(), 0, 0, 0);
    while at < code.len() {
        let [first, _] = halves(&code[at..]);
        if state & 15 != 0 {
            inside.push((at, (state >> 4) as u8));
            state = if state & 7 == 0 { 0 } else { state & 0xe0 | state << 1 & 0x1f };
        } else if first & 0xff00 == 0xbf00 && first & 15 != 0 {
            block = at;
            state = first & 0xff;
        }
        at += if is_wide(first) { 4 } else { 2 };
    }
    (inside, (state & 15 != 0).then_some(block))
}

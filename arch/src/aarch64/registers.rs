//! Which general registers an instruction reads and writes.
//!
//! The answer errs on one side only: what may be read counts as read, and what is not surely overwritten, all 64 bits of
//! it, does not count as written. Encodings are told apart as in DDI 0487, C4.1.

use super::{Inst, LINK};

/// A set of X0 to X30, a bit each. The zero register and the stack pointer are in none.
pub type RegisterMask = u32;

/// All of them.
const ALL: RegisterMask = 0x7fff_ffff;

/// What an instruction does to the general registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Effects {
    /// Those that it may read.
    pub reads: RegisterMask,
    /// Those that it overwrites whole, whatever is read.
    pub writes: RegisterMask,
    /// Those that it may change: at least all that it overwrites.
    pub changes: RegisterMask,
}

/// The 5-bit fields of an instruction as sets of the one register that each names.
struct Fields {
    /// Rd or Rt.
    d: RegisterMask,
    n: RegisterMask,
    /// Ra or Rt2.
    a: RegisterMask,
    /// Rm or Rs.
    m: RegisterMask,
}

impl Fields {
    const fn of(word: u32) -> Self {
        Self { d: one(word), n: one(word >> 5), a: one(word >> 10), m: one(word >> 16) }
    }

    const fn all(&self) -> RegisterMask {
        self.d | self.n | self.a | self.m
    }
}

const fn one(field: u32) -> RegisterMask {
    1 << (field & 0x1f) & ALL
}

const fn effects(reads: RegisterMask, writes: RegisterMask) -> Effects {
    Effects { reads, writes, changes: writes }
}

/// Nothing is known of it but that it names registers where all do, pairs by the first of them.
const fn cautious(fields: &Fields) -> Effects {
    let named = fields.all();
    let named = (named | named << 1) & ALL;
    Effects { reads: named, writes: 0, changes: named }
}

impl Inst {
    /// What it does to the general registers. A call's callee and a system call's kernel are not part of it.
    #[must_use]
    pub const fn effects(&self) -> Effects {
        let word = self.word();
        match word >> 25 & 0xf {
            0b1000 | 0b1001 => immediate(word),
            0b1010 | 0b1011 => control(word),
            0b0100 | 0b0110 | 0b1100 | 0b1110 => load_store(word),
            0b0101 | 0b1101 => register(word),
            0b0111 | 0b1111 => simd(word),
            _ => scalable(word),
        }
    }

    /// It makes room on the stack and keeps there one of the registers that a caller does not ask to be kept, X0 to X18:
    /// `str xt, [sp, #-n]!` and `stp`. Functions that keep to the AAPCS64 have no reason to.
    #[must_use]
    pub const fn pushes_scratch(&self) -> bool {
        let fields = Fields::of(self.word());
        let scratch = (1 << 19) - 1;
        let to_sp = self.word() >> 5 & 0x1f == 31;
        let one = self.word() & 0xffe0_0c00 == 0xf800_0c00 && fields.d & scratch != 0;
        let two = self.word() & 0xffc0_0000 == 0xa980_0000 && (fields.d | fields.a) & scratch != 0;
        to_sp && (one || two)
    }
}

/// "Data Processing -- Immediate".
const fn immediate(word: u32) -> Effects {
    let Fields { d, n, m, .. } = Fields::of(word);
    match (word >> 23 & 7, word >> 29 & 3) {
        // ADR, ADRP.
        (0 | 1, _) => effects(0, d),
        // MOVK and BFM keep what they don't set.
        (5, 3) => effects(d, d),
        (6, 1) => effects(n | d, d),
        (5, _) => effects(0, d),
        (7, _) => effects(n | m, d),
        // With an Rd of 31 these write SP, or only the flags.
        _ => effects(n, d),
    }
}

/// "Branches, Exception Generating and System instructions".
const fn control(word: u32) -> Effects {
    let fields = Fields::of(word);
    let Fields { d, n, m, .. } = fields;
    let link = 1 << LINK;
    match word >> 24 {
        // B
        0x14..=0x17 => effects(0, 0),
        // BL
        0x94..=0x97 => effects(0, link),
        0x54 => effects(0, 0),
        0x34..=0x37 | 0xb4..=0xb7 | 0x75 | 0xf5 => effects(d, 0),
        0x74 | 0xf4 => effects(d | m, 0),
        // MRS
        0xd5 if word & 0xfff0_0000 == 0xd530_0000 => effects(0, d),
        // TCHANGE
        0xd5 if word & 0xff80_0000 == 0xd580_0000 => cautious(&fields),
        0xd5 => system(word),
        // BLR and its kin, which have bit 21 set and bits 23 and 22 clear.
        0xd6 | 0xd7 if word >> 21 & 7 == 1 => {
            Effects { reads: d | n, writes: link & !(d | n), changes: link }
        }
        0xd6 | 0xd7 => effects(d | n | link, 0),
        _ => Effects { reads: ALL, writes: 0, changes: ALL },
    }
}

/// Hints, barriers, MSR, SYS and the like: those with no register have 31 for it.
const fn system(word: u32) -> Effects {
    let rt = one(word);
    let implied: RegisterMask = if word & 0xffff_f01f == 0xd503_201f {
        match word >> 5 & 0x7f {
            // XPACLRI; PACIAZ, PACIASP, AUTIAZ, AUTIASP and those with key B.
            0b000_0111 | 0b001_1000..=0b001_1111 => 1 << LINK,
            // PACIA1716, PACIB1716, AUTIA1716, AUTIB1716.
            0b000_1000..=0b000_1111 => 1 << 16 | 1 << 17,
            // CHKFEAT
            0b010_1000 => 1 << 16,
            _ => 0,
        }
    } else {
        rt | rt << 1 & ALL
    };
    Effects { reads: implied, writes: 0, changes: implied }
}

/// "Loads and Stores".
const fn load_store(word: u32) -> Effects {
    let fields = Fields::of(word);
    let Fields { d, n, a, m } = fields;
    let (vector, load) = (word >> 26 & 1 == 1, word >> 22 & 1 == 1);
    let (size, opc) = (word >> 30, word >> 22 & 3);
    // Literals.
    if word & 0x3b00_0000 == 0x1800_0000 {
        return if vector || size == 3 { effects(0, 0) } else { effects(0, d) };
    }
    // Pairs. The base is written back where bit 23 is set, and has been read.
    if word & 0x3a00_0000 == 0x2800_0000 {
        let base = if word >> 23 & 1 == 1 { n } else { 0 };
        return match (vector, load, size) {
            (true, ..) => Effects { reads: n, writes: 0, changes: base },
            (_, true, 0..=2) => Effects { reads: n, writes: d | a, changes: d | a | base },
            (_, false, 0..=2) => Effects { reads: n | d | a, writes: 0, changes: base },
            _ => cautious(&fields),
        };
    }
    // Structures of vectors: with bit 23 the base is increased, by Rm or by their size.
    if word & 0xbe00_0000 == 0x0c00_0000 {
        let (index, base) = if word >> 23 & 1 == 1 { (m, n) } else { (0, 0) };
        return Effects { reads: n | index, writes: 0, changes: base };
    }
    if word & 0x3f00_0000 == 0x0800_0000 {
        return exclusive(word);
    }
    if word & 0x3a00_0000 != 0x3800_0000 {
        return cautious(&fields);
    }
    // One register: an immediate offset, scaled or not, before or after, or a register's.
    let scaled = word >> 24 & 1 == 1;
    let by_register = word >> 21 & 1 == 1 && !scaled;
    if by_register && word >> 10 & 3 != 2 {
        // The eight registers of LD64B and ST64B.
        let eight = 0xff << (word & 31) & ALL;
        // Atomics by o3 and opc: LDADD and its kin, SWP; LDAPR, which names no other register.
        return match (vector, word >> 10 & 3, word >> 12 & 0xf) {
            (false, 0, 0b0000..=0b1000) => Effects { reads: n | m, writes: d, changes: d },
            (false, 0, 0b1100) => Effects { reads: n, writes: d, changes: d },
            // ST64B; ST64BV0 and ST64BV, whose Rs is whether it stored; LD64B.
            (false, 0, 0b1001) if size == 3 => Effects { reads: n | eight, writes: 0, changes: 0 },
            (false, 0, 0b1010 | 0b1011) if size == 3 => Effects { reads: n | eight, writes: 0, changes: m },
            (false, 0, 0b1101) if size == 3 => Effects { reads: n, writes: eight, changes: eight },
            _ => cautious(&fields),
        };
    }
    let index = if by_register { m } else { 0 };
    let base = if !scaled && !by_register && word >> 10 & 1 == 1 { n } else { 0 };
    match (vector, size, opc) {
        // SIMD&FP registers, and PRFM and RPRFM.
        (true, ..) | (_, 3, 2) => Effects { reads: n | index, writes: 0, changes: base },
        (_, _, 0) => Effects { reads: n | index | d, writes: 0, changes: base },
        _ => Effects { reads: n | index, writes: d, changes: d | base },
    }
}

/// "Load/store exclusive register", "exclusive pair" and "ordered", "Compare and swap", by o2, L and o1.
const fn exclusive(word: u32) -> Effects {
    let fields = Fields::of(word);
    let Fields { d, n, a, m } = fields;
    match (word >> 23 & 1, word >> 22 & 1, word >> 21 & 1) {
        // LDXR, LDAXR; LDAR
        (_, 1, 0) => Effects { reads: n, writes: d, changes: d },
        // STXR, STLXR: Rs is whether it stored.
        (0, _, 0) => Effects { reads: n | d, writes: m, changes: m },
        // STLR
        (_, _, 0) => effects(n | d, 0),
        // LDXP, LDAXP; STXP, STLXP. With a size of 0x this is CASP.
        (0, 1, _) if word >> 31 == 1 => Effects { reads: n, writes: d | a, changes: d | a },
        (0, _, _) if word >> 31 == 1 => Effects { reads: n | d | a, writes: m, changes: m },
        _ => cautious(&fields),
    }
}

/// "Data Processing -- Register".
const fn register(word: u32) -> Effects {
    let fields = Fields::of(word);
    let Fields { d, n, a, m } = fields;
    // Logical, ADD, SUB.
    if word >> 28 & 1 == 0 {
        return effects(n | m, d);
    }
    match word >> 21 & 0xf {
        // ADC, SBC; RMIF, SETF and the additions of pointers have other bits there.
        0b0000 if word >> 10 & 0x3f == 0 => effects(n | m, d),
        // CCMP, CCMN: Rd is the flags, and with bit 11 Rm a constant.
        0b0010 => effects(if word >> 11 & 1 == 1 { n } else { n | m }, 0),
        // CSEL and its kin.
        0b0100 => effects(n | m, d),
        // Two sources; of one, those that are not about pointer authentication.
        0b0110 if word >> 30 & 1 == 0 || word >> 16 & 0x1f == 0 => effects(n | m, d),
        0b0110 => {
            let all = d | n | 1 << LINK | 1 << 15 | 1 << 16 | 1 << 17;
            Effects { reads: all, writes: 0, changes: all }
        }
        // MADD and its kin.
        0b1000..=0b1111 => effects(n | m | a, d),
        _ => cautious(&fields),
    }
}

/// "Data Processing -- Scalar Floating-Point and Advanced SIMD".
const fn simd(word: u32) -> Effects {
    let Fields { d, n, .. } = Fields::of(word);
    let (to_general, from_general) = (effects(0, d), effects(n, 0));
    let either = Effects { reads: d | n, writes: 0, changes: d | n };
    // Conversions between floating-point and integer, and FMOV between the files, by rmode and opcode.
    if word & 0x5f20_fc00 == 0x1e20_0000 {
        return match (word >> 19 & 3, word >> 16 & 7) {
            (_, 0 | 1) | (0, 4 | 5) | (0 | 1 | 3, 6) => to_general,
            (0, 2 | 3) | (0 | 1, 7) => from_general,
            _ => either,
        };
    }
    // The same with fixed-point.
    if word & 0x5f20_0000 == 0x1e00_0000 {
        return match word >> 16 & 0x1f {
            0b11_000 | 0b11_001 => to_general,
            0b00_010 | 0b00_011 => from_general,
            _ => either,
        };
    }
    // "Advanced SIMD copy", by imm4: DUP and INS from a general register, SMOV and UMOV.
    if word & 0xbfe0_8400 == 0x0e00_0400 {
        return match word >> 11 & 0xf {
            0b0001 | 0b0011 => from_general,
            0b0101 | 0b0111 => to_general,
            _ => effects(0, 0),
        };
    }
    effects(0, 0)
}

/// SVE, which names predicates and vectors where others name general registers, and no pairs of these; SME, which names
/// W8 to W15 by fewer bits; and what is not allocated.
const fn scalable(word: u32) -> Effects {
    let fields = Fields::of(word);
    let named = match word >> 25 & 0xf {
        // PSEL: W12 to W15 by two bits.
        0b0010 if word & 0xff20_c210 == 0x2520_4000 => 0xf000,
        // Loads and stores: a base and an index.
        0b0010 if word >> 31 == 1 => fields.n | fields.m,
        // Where others have Ra these have a predicate.
        0b0010 => fields.d | fields.n | fields.m,
        _ => cautious(&fields).reads | 0xff00,
    };
    Effects { reads: named, writes: 0, changes: named }
}

//! The instructions that compilers write most, told from their bytes alone.
//!
//! Before iced-x86 decodes its first instruction in a process it makes its tables: half a millisecond and 700 KiB of memory,
//! which is much for who hooks a few functions of libc at a program's start. So [`decode`](super::decode()) asks here first. What
//! isn't listed is left to iced-x86, and so is whatever is odd: a prefix without a meaning, two of a kind, a truncated
//! instruction. iced-x86 is the judge in the tests below.
//!
//! Source: SDM volume 2, appendix A.

use super::{Bases, Cond, Flow, Inst, MAX_INST_LEN, Mask, Prefixes, RSP, RipOperand, StackUse};
use crate::CodeAddr;

/// What lies behind an opcode.
#[derive(Clone, Copy)]
struct Shape {
    modrm: Option<ModRm>,
    immediate: Immediate,
    flow: Leaves,
    /// `nop` or `int3`.
    padding: bool,
    /// It may be repeated by `F3` or `F2`.
    repeats: bool,
}

/// Which forms of ModRM are instructions. Sets of values of its middle field are masks: bit 0 is 0.
#[derive(Clone, Copy)]
struct ModRm {
    fields: u8,
    memory: bool,
    register: bool,
    /// Where memory may be accessed under `F0`.
    locks: u8,
    access: Access,
}

/// How many bytes of memory are accessed.
#[derive(Clone, Copy)]
enum Access {
    Bytes(u16),
    /// As the operand size says: 2, 4 or 8.
    Operand,
    /// 4, or 8 under REX.W.
    Wide,
    /// Not told here.
    Untold,
}

#[derive(Clone, Copy)]
enum Immediate {
    None,
    /// One byte.
    Byte,
    /// 2 bytes under `66`, and 4 otherwise.
    Word,
    /// As the operand size says: 2, 4 or 8.
    Operand,
}

/// How it leaves, for what has no prefixes but a REX, unless it goes to the next instruction.
#[derive(Clone, Copy)]
enum Leaves {
    Next,
    /// By a displacement of so many bytes: the immediate.
    Jump(usize),
    Cond(usize),
    Call,
    /// As the middle field of ModRM says: 2 calls, 4 jumps.
    Indirect,
    Fixed(Flow),
}

const ALL: u8 = 0xff;

impl Shape {
    const BARE: Self =
        Self { modrm: None, immediate: Immediate::None, flow: Leaves::Next, padding: false, repeats: false };
    /// With ModRM, any register or memory.
    const ANY: Self = Self {
        modrm: Some(ModRm { fields: ALL, memory: true, register: true, locks: 0, access: Access::Operand }),
        ..Self::BARE
    };

    const fn access(mut self, access: Access) -> Self {
        if let Some(modrm) = &mut self.modrm {
            modrm.access = access;
        }
        self
    }

    const fn bytes(self, bytes: u16) -> Self {
        self.access(Access::Bytes(bytes))
    }

    /// A byte in opcodes whose lowest bit is 0, and the operand size in the others.
    const fn sized(self, opcode: u8) -> Self {
        if opcode & 1 == 0 { self.bytes(1) } else { self }
    }

    const fn fields(mut self, fields: u8) -> Self {
        if let Some(modrm) = &mut self.modrm {
            modrm.fields = fields;
        }
        self
    }

    const fn locks(mut self, locks: u8) -> Self {
        if let Some(modrm) = &mut self.modrm {
            modrm.locks = locks;
        }
        self
    }

    const fn memory(mut self) -> Self {
        if let Some(modrm) = &mut self.modrm {
            modrm.register = false;
        }
        self
    }

    const fn register(mut self) -> Self {
        if let Some(modrm) = &mut self.modrm {
            modrm.memory = false;
        }
        self
    }

    const fn with(mut self, immediate: Immediate) -> Self {
        self.immediate = immediate;
        self
    }

    const fn leaves(mut self, flow: Leaves) -> Self {
        self.flow = flow;
        self
    }

    const fn repeated(mut self) -> Self {
        self.repeats = true;
        self
    }

    const fn padding(mut self) -> Self {
        self.padding = true;
        self
    }
}

/// The legacy prefixes and the REX, none of them twice but `66`.
#[derive(Clone, Copy, Default)]
struct Lead {
    rex: u8,
    operand_size: bool,
    lock: bool,
    /// `F2` or `F3`, or 0.
    repeat: u8,
    segment: bool,
    len: usize,
}

impl Lead {
    fn of(bytes: &[u8]) -> Option<Self> {
        let mut lead = Self::default();
        for &byte in bytes {
            match byte {
                0x66 => lead.operand_size = true,
                0xf0 if !lead.lock => lead.lock = true,
                0xf2 | 0xf3 if lead.repeat == 0 => lead.repeat = byte,
                0x2e | 0x64 | 0x65 if !lead.segment => lead.segment = true,
                0x40..=0x4f => {
                    lead.rex = byte;
                    lead.len += 1;
                    return Some(lead);
                }
                0xf0 | 0xf2 | 0xf3 | 0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0x67 => return None,
                _ => return Some(lead),
            }
            lead.len += 1;
        }
        None
    }

    fn is_wide(self) -> bool {
        self.rex & 8 != 0
    }

    /// 2, 4 or 8.
    fn operand(self) -> usize {
        match (self.is_wide(), self.operand_size) {
            (true, _) => 8,
            (false, true) => 2,
            (false, false) => 4,
        }
    }

    /// None that changes what a branch does.
    fn is_none(self) -> bool {
        !self.operand_size && !self.lock && self.repeat == 0 && !self.segment
    }
}

/// Opcodes of one byte.
fn one(opcode: u8, lead: Lead) -> Option<Shape> {
    use Immediate::{Byte, Operand, Word};
    Some(match opcode {
        0x00..=0x3f => match opcode & 7 {
            // `cmp` writes no memory.
            0 | 1 => Shape::ANY.sized(opcode).locks(if opcode < 0x38 { ALL } else { 0 }),
            2 | 3 => Shape::ANY.sized(opcode),
            4 => Shape::BARE.with(Byte),
            5 => Shape::BARE.with(Word),
            _ => return None,
        },
        0x50..=0x5f | 0x91..=0x99 => Shape::BARE,
        0x63 if !lead.operand_size => Shape::ANY.bytes(4),
        0x68 => Shape::BARE.with(Word),
        0x69 => Shape::ANY.with(Word),
        0x6a => Shape::BARE.with(Byte),
        0x6b => Shape::ANY.with(Byte),
        0x70..=0x7f => Shape::BARE.with(Byte).leaves(Leaves::Cond(1)),
        0x80 => Shape::ANY.bytes(1).locks(ALL >> 1).with(Byte),
        0x81 => Shape::ANY.locks(ALL >> 1).with(Word),
        0x83 => Shape::ANY.locks(ALL >> 1).with(Byte),
        0x84 | 0x85 | 0x88..=0x8b => Shape::ANY.sized(opcode),
        0x86 | 0x87 => Shape::ANY.sized(opcode).locks(ALL),
        0x8d => Shape::ANY.memory().bytes(0),
        0x8f => Shape::ANY.fields(1).access(Access::Untold),
        0x90 if lead.repeat == 0xf3 && lead.rex == 0 => Shape::BARE.repeated(),
        0x90 if lead.rex == 0 => Shape::BARE.padding(),
        0xa4..=0xa7 | 0xaa..=0xaf => Shape::BARE.repeated(),
        0xa8 => Shape::BARE.with(Byte),
        0xa9 => Shape::BARE.with(Word),
        0xb0..=0xb7 => Shape::BARE.with(Byte),
        0xb8..=0xbf => Shape::BARE.with(Operand),
        0xc0 | 0xc1 => Shape::ANY.sized(opcode).with(Byte),
        0xc3 => Shape::BARE.leaves(Leaves::Fixed(Flow::Return)),
        0xc6 => Shape::ANY.bytes(1).fields(1).with(Byte),
        0xc7 => Shape::ANY.fields(1).with(Word),
        0xc9 => Shape::BARE,
        0xcc => Shape::BARE.padding().leaves(Leaves::Fixed(Flow::Breakpoint)),
        0xd0..=0xd3 => Shape::ANY.sized(opcode),
        0xe8 => Shape::BARE.with(Word).leaves(Leaves::Call),
        0xe9 => Shape::BARE.with(Word).leaves(Leaves::Jump(4)),
        0xeb => Shape::BARE.with(Byte).leaves(Leaves::Jump(1)),
        // The immediate of the first two fields is for the caller.
        0xf6 | 0xf7 => Shape::ANY.sized(opcode).locks(0b1100),
        0xf5 | 0xf8 | 0xf9 | 0xfc | 0xfd => Shape::BARE,
        0xfe => Shape::ANY.bytes(1).fields(0b11).locks(0b11),
        0xff => Shape::ANY.fields(0b0101_0111).locks(0b11).leaves(Leaves::Indirect),
        _ => return None,
    })
}

/// Opcodes behind `0F`, without a prefix that chooses.
fn two(opcode: u8, lead: Lead) -> Option<Shape> {
    use Immediate::{Byte, Word};
    if let Some(shape) = general(opcode) {
        return Some(shape);
    }
    // Those behind are of vectors, or take no `66`.
    if lead.operand_size {
        return None;
    }
    Some(match opcode {
        0x05 => Shape::BARE.leaves(Leaves::Fixed(Flow::Syscall)),
        0x0b => Shape::BARE.leaves(Leaves::Fixed(Flow::Undefined)),
        0x10 | 0x11 | 0x28 | 0x29 | 0x54..=0x57 => Shape::ANY.bytes(16),
        0x12 | 0x14..=0x16 | 0x2e | 0x2f | 0x51 | 0x58..=0x5f => Shape::ANY.access(Access::Untold),
        0x13 | 0x17 => Shape::ANY.memory().access(Access::Untold),
        0x50 => Shape::ANY.register(),
        0x80..=0x8f => Shape::BARE.with(Word).leaves(Leaves::Cond(4)),
        0xc6 => Shape::ANY.access(Access::Untold).with(Byte),
        0xc7 => Shape::ANY.memory().fields(0b10).locks(0b10).access(Access::Untold),
        0x31 | 0xa2 => Shape::BARE,
        _ => return None,
    })
}

/// Opcodes behind `0F` for which `66` is the operand size.
fn general(opcode: u8) -> Option<Shape> {
    use Immediate::Byte;
    Some(match opcode {
        0x1f => Shape::ANY.fields(1).bytes(0).padding(),
        0x40..=0x4f | 0xa5 | 0xad | 0xaf | 0xbc | 0xbd => Shape::ANY,
        0x90..=0x9f | 0xb6 | 0xbe => Shape::ANY.bytes(1),
        0xa3 => Shape::ANY,
        0xab | 0xb3 | 0xbb | 0xb1 | 0xc1 => Shape::ANY.locks(ALL),
        0xb0 | 0xc0 => Shape::ANY.bytes(1).locks(ALL),
        0xa4 | 0xac => Shape::ANY.with(Byte),
        0xb7 | 0xbf => Shape::ANY.bytes(2),
        0xba => Shape::ANY.fields(0xf0).locks(0xe0).with(Byte),
        0xc8..=0xcf => Shape::BARE,
        _ => return None,
    })
}

/// Opcodes behind `66 0F` on vectors.
fn of_66(opcode: u8) -> Option<Shape> {
    use Immediate::Byte;
    Some(match opcode {
        0x10 | 0x11 | 0x28 | 0x29 | 0x54..=0x57 | 0x60..=0x6d | 0x6f | 0x7f => Shape::ANY.bytes(16),
        0x74..=0x76 | 0xd4 | 0xda | 0xdb | 0xde | 0xdf | 0xeb | 0xef | 0xf8..=0xfe => Shape::ANY.bytes(16),
        0x12 | 0x13 | 0x16 | 0x17 | 0xe7 => Shape::ANY.memory().access(Access::Untold),
        0x14 | 0x15 | 0x2e | 0x2f | 0x51 | 0x58..=0x5f => Shape::ANY.access(Access::Untold),
        0x50 | 0xd7 => Shape::ANY.register(),
        0x6e | 0x7e => Shape::ANY.access(Access::Wide),
        0x70 | 0xc6 => Shape::ANY.access(Access::Untold).with(Byte),
        0x71 | 0x72 => Shape::ANY.register().fields(0b0101_0100).with(Byte),
        0x73 => Shape::ANY.register().fields(0b1100_1100).with(Byte),
        0xd6 => Shape::ANY.bytes(8),
        _ => return None,
    })
}

/// Opcodes behind `F3 0F`.
fn of_f3(opcode: u8, next: Option<&u8>) -> Option<Shape> {
    Some(match opcode {
        0x10 | 0x11 => Shape::ANY.bytes(4),
        0x12 | 0x16 | 0x2a | 0x2c | 0x2d | 0x51..=0x53 | 0x58..=0x5f => Shape::ANY.access(Access::Untold),
        // `endbr64`.
        0x1e if next == Some(&0xfa) => Shape::ANY,
        0x6f | 0x7f => Shape::ANY.bytes(16),
        0x70 => Shape::ANY.access(Access::Untold).with(Immediate::Byte),
        0x7e => Shape::ANY.bytes(8),
        0xb8 | 0xbc | 0xbd => Shape::ANY,
        _ => return None,
    })
}

/// Opcodes behind `F2 0F`.
fn of_f2(opcode: u8) -> Option<Shape> {
    Some(match opcode {
        0x10 | 0x11 => Shape::ANY.bytes(8),
        0x12 | 0x2a | 0x2c | 0x2d | 0x51 | 0x58..=0x5a | 0x5c..=0x5f => Shape::ANY.access(Access::Untold),
        0x70 => Shape::ANY.access(Access::Untold).with(Immediate::Byte),
        _ => return None,
    })
}

/// The first instruction of `bytes`, which are as many as one can have at most, if it is one of those told here.
pub(super) fn decode(addr: CodeAddr, bytes: &[u8], prefixes: Prefixes) -> Option<Inst> {
    let lead = Lead::of(bytes)?;
    let mut at = lead.len;
    let first = *bytes.get(at)?;
    at += 1;
    let (opcode, mut shape, chosen) = if first == 0x0f {
        let opcode = *bytes.get(at)?;
        at += 1;
        let shape = match (lead.repeat, lead.operand_size) {
            (0xf3, false) => of_f3(opcode, bytes.get(at)),
            (0xf2, false) => of_f2(opcode),
            (0, true) => of_66(opcode).or_else(|| two(opcode, lead)),
            (0, false) => two(opcode, lead),
            _ => None,
        };
        (opcode, shape?, true)
    } else {
        (first, one(first, lead)?, false)
    };
    // What isn't chosen by it may only be repeated.
    if lead.repeat != 0 && !chosen && !shape.repeats {
        return None;
    }
    let mut field = None;
    let mut locked = false;
    let mut middle = 0;
    if let Some(modrm) = shape.modrm {
        let byte = *bytes.get(at)?;
        at += 1;
        middle = byte >> 3 & 7;
        let in_memory = byte < 0xc0;
        if modrm.fields >> middle & 1 == 0 || !(if in_memory { modrm.memory } else { modrm.register }) {
            return None;
        }
        locked = in_memory && modrm.locks >> middle & 1 == 1;
        if in_memory {
            let base = if byte & 7 == 4 {
                at += 1;
                *bytes.get(at - 1)? & 7
            } else {
                byte & 7
            };
            match byte >> 6 {
                0 if byte & 7 == 5 => field = Some(at),
                0 if base == 5 => at += 4,
                1 => at += 1,
                2 => at += 4,
                _ => {}
            }
            if field.is_some() {
                at += 4;
            }
        }
        if !chosen && matches!(opcode, 0xf6 | 0xf7) && middle < 2 {
            shape.immediate = if opcode == 0xf6 { Immediate::Byte } else { Immediate::Word };
        }
    }
    if lead.lock && !locked {
        return None;
    }
    at += match shape.immediate {
        Immediate::None => 0,
        Immediate::Byte => 1,
        Immediate::Word => lead.operand().min(4),
        Immediate::Operand => lead.operand(),
    };
    let whole = bytes.get(..at).filter(|whole| whole.len() <= MAX_INST_LEN)?;
    let next = CodeAddr(addr.0.wrapping_add(at as u64));
    // The last bytes of `whole`.
    let target = |len: usize| {
        let distance = match whole[at - len..] {
            [byte] => i64::from(byte as i8),
            [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
            _ => return None,
        };
        Some(CodeAddr(next.0.wrapping_add_signed(distance)))
    };
    let flow = match shape.flow {
        Leaves::Next => Flow::Next,
        _ if !lead.is_none() && !matches!((shape.flow, middle), (Leaves::Indirect, 0 | 1 | 6)) => {
            return None;
        }
        Leaves::Jump(len) => Flow::Jump { target: target(len)? },
        Leaves::Cond(len) => Flow::Cond { cond: Cond::of_opcode(opcode), target: target(len)? },
        Leaves::Call => Flow::Call { target: target(4)? },
        Leaves::Indirect => match middle {
            2 => Flow::CallIndirect,
            4 => Flow::JumpIndirect,
            _ => Flow::Next,
        },
        Leaves::Fixed(flow) => flow,
    };
    let rip = match (field, shape.modrm) {
        (Some(field), Some(modrm)) => {
            let displacement = whole.get(field..field + 4)?.try_into().ok()?;
            let distance = i64::from(i32::from_le_bytes(displacement));
            let access = match modrm.access {
                Access::Bytes(bytes) => bytes,
                // These push, or go to what they read: always of 64 bits.
                Access::Operand if !chosen && opcode == 0xff && middle >= 2 && lead.is_none() => 8,
                Access::Operand if !chosen && opcode == 0xff && middle >= 2 => return None,
                Access::Operand => lead.operand() as u16,
                Access::Wide if lead.is_wide() => 8,
                Access::Wide => 4,
                Access::Untold => return None,
            };
            Some(RipOperand {
                target: CodeAddr(next.0.wrapping_add_signed(distance)),
                field: field as u8,
                wraps: false,
                access,
            })
        }
        _ => None,
    };
    Some(Inst::plain(addr, whole, prefixes, flow, rip, shape.padding))
}

/// What [`Inst::bases`] says of an instruction with an operand relative to RIP, if it is one of a few.
pub(super) fn bases(inst: &Inst) -> Option<Bases> {
    let bytes = inst.bytes();
    let lead = Lead::of(bytes)?;
    let (&opcode, &modrm) = (bytes.get(lead.len)?, bytes.get(lead.len + 1)?);
    let middle = modrm >> 3 & 7;
    let register = middle | (lead.rex & 4) << 1;
    let bases = |uses: Mask, own, stack| Some(Bases { free: !RSP & !uses, own, stack });
    let stack = if register == 4 { StackUse::Other } else { StackUse::None };
    // AH, CH, DH and BH, which no instruction with a REX can name.
    let is_high = opcode & 1 == 0 && lead.rex == 0 && middle >= 4;
    match opcode {
        0x80 | 0x81 | 0x83 | 0xc6 | 0xc7 => bases(0, 0, StackUse::None),
        0xf6 | 0xf7 if middle < 4 => bases(0, 0, StackUse::None),
        0xff if lead.is_none() => match middle {
            0 | 1 | 4 => bases(0, 0, StackUse::None),
            2 => bases(0, 0, StackUse::Other),
            6 => bases(0, 0, StackUse::Push),
            _ => None,
        },
        0x00..=0x3f if opcode & 7 > 3 => None,
        0x00..=0x3f | 0x84 | 0x85 | 0x88..=0x8a if is_high => None,
        0x00..=0x3f | 0x84 | 0x85 | 0x88..=0x8a => bases(1 << register, 0, stack),
        0x8b if lead.operand() > 2 && register != 4 => bases(0, 1 << register, StackUse::None),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x86_64::decode::thorough;
    use alloc::vec::Vec;

    const ADDR: CodeAddr = CodeAddr(0x7fff_0000_1000);
    /// The addresses of what lies behind begin anew.
    const LAST: CodeAddr = CodeAddr(u64::MAX - 3);

    /// Both say the same of these bytes, if the quick one says anything. Whether it does.
    fn agrees(bytes: &[u8]) -> bool {
        let prefixes = Prefixes::scan(bytes);
        let addr = if bytes.last().is_some_and(|last| last & 1 == 0) { ADDR } else { LAST };
        let Some(inst) = decode(addr, bytes, prefixes) else { return false };
        assert_eq!(Ok(inst), thorough(addr, bytes, prefixes), "{bytes:02x?}");
        if inst.rip_operand().is_some()
            && let Some(quick) = bases(&inst)
        {
            assert_eq!(quick, Bases::of(&inst.raw()), "{bytes:02x?}");
        }
        true
    }

    /// Every opcode behind every choice of prefixes, with every ModRM: what is told is what iced-x86 tells.
    #[test]
    #[cfg_attr(miri, ignore = "tens of millions of instructions")]
    fn every_opcode_is_as_iced_has_it() {
        let legacy: [&[u8]; 16] = [
            &[],
            &[0x66],
            &[0xf2],
            &[0xf3],
            &[0xf0],
            &[0x64],
            &[0x2e],
            &[0x3e],
            &[0x67],
            &[0x66, 0x66, 0x2e],
            &[0x66, 0xf0],
            &[0xf3, 0x66],
            &[0xf0, 0xf2],
            &[0xf2, 0xf3],
            &[0x65],
            &[0x64, 0xf0],
        ];
        let rexes: [&[u8]; 10] =
            [&[], &[0x40], &[0x41], &[0x42], &[0x44], &[0x48], &[0x4b], &[0x4c], &[0x4f], &[0x48, 0x66]];
        let (mut told, mut all) = (0, 0);
        let mut bytes = Vec::new();
        for (legacy, rex) in legacy.iter().flat_map(|legacy| rexes.iter().map(move |rex| (legacy, rex))) {
            for escape in [&[][..], &[0x0f]] {
                for opcode in 0..=0xff {
                    for modrm in 0..=0xff_u8 {
                        // A SIB byte with and without a base, and displacements with either sign.
                        for (behind, high) in [(0x25, 0x83), (0x84, 0x13), (0x9d, 0x90)] {
                            bytes.clear();
                            bytes.extend_from_slice(legacy);
                            bytes.extend_from_slice(rex);
                            bytes.extend_from_slice(escape);
                            bytes.extend([opcode, modrm, behind, 0x95, high, high, 0x17, 0x28, high, 0x3a]);
                            bytes.extend([0x4b, 0xcc, 0x5d]);
                            bytes.truncate(MAX_INST_LEN);
                            told += usize::from(agrees(&bytes));
                            all += 1;
                        }
                    }
                }
            }
        }
        assert!(told > all / 8, "{told} of {all}");
    }

    /// What is cut anywhere isn't told.
    #[test]
    fn what_is_truncated_is_left_to_iced() {
        let whole: [&[u8]; 6] = [
            &[0x48, 0xc7, 0x84, 0x24, 1, 0, 0, 0, 2, 0, 0, 0],
            &[0x80, 0x3d, 1, 2, 3, 0, 0],
            &[0x0f, 0x84, 1, 2, 3, 4],
            &[0x49, 0xb8, 1, 2, 3, 4, 5, 6, 7, 8],
            &[0xf3, 0x0f, 0x1e, 0xfa],
            &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0],
        ];
        for whole in whole {
            assert!(agrees(whole));
            for len in 0..whole.len() {
                let prefixes = Prefixes::scan(&whole[..len]);
                assert_eq!(decode(ADDR, &whole[..len], prefixes), None, "{whole:02x?}, {len}");
            }
        }
        // A REX that isn't last; fifteen bytes, and no opcode among them.
        assert!(!agrees(&[0x48, 0x66, 0x89, 0xc3]));
        let mut longest = [0x66; MAX_INST_LEN];
        assert!(!agrees(&longest));
        longest[MAX_INST_LEN - 1] = 0x90;
        assert!(agrees(&longest));
    }
}

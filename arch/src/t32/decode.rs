//! One instruction, and what a relocator must know of it.

use exarmo_aarch32::{DecodeError as Reason, Instruction, Offset, Operand, Reg, t32};

use super::{Flow, It, Literal, LiteralForm, MAX_INST_LEN, PcUse, Unsupported, flow, len, pointer};
use crate::{CodeAddr, DecodeError, a32::Cond};

/// The number of the PC.
const PC: u8 = 15;

/// What an instruction does with the exclusive monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exclusive {
    /// Nothing.
    None,
    /// It begins a sequence: `ldrex` and its kin.
    Begins,
    /// It ends one: `strex` and its kin, `clrex`.
    Ends,
}

/// An instruction with its address, its bytes, and its place in an IT block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inst {
    addr: CodeAddr,
    bytes: [u8; MAX_INST_LEN],
    len: u8,
    it: It,
    next_it: It,
    flow: Flow,
    pc_use: PcUse,
    core: u16,
    exclusive: Exclusive,
}

impl Inst {
    /// The address it runs at, without the lowest bit.
    #[must_use]
    pub const fn addr(&self) -> CodeAddr {
        self.addr
    }

    /// The address behind it.
    #[must_use]
    pub const fn next(&self) -> CodeAddr {
        self.addr.add(self.len as u64)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Its halfwords; the second one of a 16-bit instruction is 0.
    #[must_use]
    pub const fn halfwords(&self) -> (u16, u16) {
        let [a, b, c, d] = self.bytes;
        (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]))
    }

    /// Its place in an IT block.
    #[must_use]
    pub const fn it(&self) -> It {
        self.it
    }

    /// The place of what follows it.
    #[must_use]
    pub const fn next_it(&self) -> It {
        self.next_it
    }

    /// It begins an IT block.
    #[must_use]
    pub const fn begins_it(&self) -> bool {
        !self.it.is_inside() && self.next_it.is_inside()
    }

    /// The condition that its IT block gives it.
    #[must_use]
    pub const fn cond(&self) -> Cond {
        self.it.cond()
    }

    /// The register that has the address which it calls.
    #[must_use]
    pub const fn callee(&self) -> Option<u8> {
        match self.flow {
            Flow::CallIndirect => Some((self.halfwords().0 >> 3 & 15) as u8),
            _ => None,
        }
    }

    /// How it leaves, if it is executed.
    #[must_use]
    pub const fn flow(&self) -> Flow {
        self.flow
    }

    /// No execution goes on behind it.
    #[must_use]
    pub const fn is_exit(&self) -> bool {
        self.flow.is_exit() && self.it.cond().is_always()
    }

    /// How it reads the PC beside branching.
    #[must_use]
    pub const fn pc_use(&self) -> PcUse {
        self.pc_use
    }

    /// The general registers that it names, by bit. SP that is named by the opcode alone (`push`) is not among them.
    #[must_use]
    pub const fn registers(&self) -> u16 {
        self.core
    }

    /// It writes a flag.
    #[must_use]
    pub fn writes_flags(&self) -> bool {
        let (first, second) = self.halfwords();
        let raw = t32::decode_word(u32::from(first) << 16 | u32::from(second), self.it.state());
        raw.map_or(true, |raw| !raw.flags().writes.is_empty())
    }

    /// What it does with the exclusive monitor.
    #[must_use]
    pub const fn exclusive(&self) -> Exclusive {
        self.exclusive
    }

    /// A `nop`, or the zeros of `movs r0, r0`: what compilers and linkers put between functions.
    #[must_use]
    pub const fn is_padding(&self) -> bool {
        matches!(self.halfwords(), (0xbf00, 0) | (0, 0) | (0x46c0, 0) | (0xf3af, 0x8000))
    }
}

/// Decodes the first instruction of `bytes`, which runs at `addr` and is in no IT block.
///
/// # Errors
///
/// [`DecodeError`] if there is no whole, defined, predictable instruction.
pub fn decode(addr: CodeAddr, bytes: &[u8]) -> Result<Inst, DecodeError> {
    decode_within(addr, bytes, It::OUTSIDE)
}

/// The same at any place of an IT block.
///
/// # Errors
///
/// As [`decode`].
pub fn decode_within(addr: CodeAddr, bytes: &[u8], it: It) -> Result<Inst, DecodeError> {
    let &[a, b, ref rest @ ..] = bytes else { return Err(DecodeError::Truncated) };
    let first = u16::from_le_bytes([a, b]);
    let len = len(first);
    let second = match (len, rest) {
        (2, _) => 0,
        (_, &[c, d, ..]) => u16::from_le_bytes([c, d]),
        _ => return Err(DecodeError::Truncated),
    };
    let raw = t32::decode_word(u32::from(first) << 16 | u32::from(second), it.state()).map_err(|reason| {
        match reason {
            Reason::Unpredictable => DecodeError::Unpredictable,
            // IT under the condition 15.
            _ if first & 0xfff0 == 0xbff0 && first & 0xf != 0 => DecodeError::Unpredictable,
            _ => DecodeError::Undefined,
        }
    })?;
    let (flow, mut pc_use) = match len {
        2 => (flow::narrow(addr, first), pointer::narrow(addr, first)),
        _ => (flow::wide(addr, first, second), pointer::wide(addr, first, second)),
    };
    let begins_it = first >> 8 == 0xbf && first & 0xf != 0;
    // LDR to the PC must load from a multiple of 4 (DDI 0406, A8.8.64).
    let misaligned = matches!(pc_use, PcUse::Literal(Literal { form: LiteralForm::Pc, target, .. }) if !target.0.is_multiple_of(4));
    let left_open = flow == Flow::Unsupported(Unsupported::Unpredictable);
    if raw.unpredictable() || misaligned || left_open || unpredictable_in_block(it, first, second, flow) {
        return Err(DecodeError::Unpredictable);
    }
    let core = named(&raw);
    if flow == Flow::Next && pc_use == PcUse::None && core >> PC & 1 == 1 && !moves_flags(first, second) {
        pc_use = PcUse::Unknown;
    }
    let [c, d] = second.to_le_bytes();
    Ok(Inst {
        addr,
        bytes: [a, b, c, d],
        len: len as u8,
        it,
        next_it: if begins_it { It::begun_by(first) } else { it.advanced() },
        flow,
        pc_use,
        core,
        exclusive: exclusive(first, second),
    })
}

/// What may not stand in an IT block, or only at its end: most of it is in the pseudocode of single instructions
/// (`InITBlock`), the rest in DDI 0406, A8.8.55.
fn unpredictable_in_block(it: It, first: u16, second: u16, flow: Flow) -> bool {
    if !it.is_inside() {
        return false;
    }
    let leaves = match flow {
        Flow::Next | Flow::Breakpoint | Flow::Undefined => false,
        Flow::Cond { .. } | Flow::CompareZero { .. } => return true,
        _ => true,
    };
    // IT; CPS and SETEND in both widths
    let never = first >> 8 == 0xbf && first & 0xf != 0
        || matches!(first & 0xffe8, 0xb660)
        || matches!(first & 0xfff7, 0xb650)
        || first & 0xfff0 == 0xf3a0 && second & 0xd700 == 0x8100;
    never || leaves && !it.is_last()
}

/// `mrc` with the PC as destination writes the flags, and so does `vmrs`.
fn moves_flags(first: u16, second: u16) -> bool {
    first & 0xef10 == 0xee10 && second & 0x10 == 0x10
}

/// `ldrex`, `strex`, the forms for bytes, halfwords and doublewords, with acquire and release; `clrex`.
fn exclusive(first: u16, second: u16) -> Exclusive {
    // e8d0 also has TBB and TBH (0, 1), and loads and stores with acquire and release that are not exclusive (8 to 10).
    let ordered = matches!(second >> 4 & 0xf, 4 | 5 | 7 | 0xc..=0xf);
    match first & 0xfff0 {
        0xe850 => Exclusive::Begins,
        0xe8d0 if ordered => Exclusive::Begins,
        0xe840 => Exclusive::Ends,
        0xe8c0 if ordered => Exclusive::Ends,
        0xf3b0 if second & 0xf0 == 0x20 && second >> 12 == 8 => Exclusive::Ends,
        _ => Exclusive::None,
    }
}

/// The general registers among the operands, by bit; an operand that the decoder has no words for is all of them.
fn named(raw: &Instruction) -> u16 {
    let core = |reg: Reg| match reg {
        Reg::Core(register) => 1 << register.num(),
        _ => 0,
    };
    let modifier = |modifier: Option<exarmo_aarch32::Modifier>| {
        modifier.and_then(|modifier| modifier.by).map_or(0, |by| 1 << by.num())
    };
    raw.operands().as_slice().iter().fold(0, |mask, operand| {
        mask | match *operand {
            Operand::Reg(operand) => core(operand.reg) | modifier(operand.modifier),
            Operand::Label { .. } => 1 << PC,
            Operand::Mem(mem) => {
                core(mem.base)
                    | match mem.offset {
                        Offset::Reg { reg, modifier: shift, .. } => core(reg) | modifier(shift),
                        _ => 0,
                    }
            }
            Operand::List(list) if list.file == exarmo_aarch32::ListFile::Core => list.mask as u16,
            Operand::Modifier(by) => modifier(Some(by)),
            Operand::Other => u16::MAX,
            _ => 0,
        }
    })
}

#[cfg(test)]
mod tests {
    use exarmo_aarch32::BranchKind;

    use super::*;

    const AT: CodeAddr = CodeAddr(0x1000_0002);
    const EVEN: CodeAddr = CodeAddr(0x1000_0004);

    /// `decode_within` against what the specification says of the same bytes. The answer says whether it was accepted.
    fn judge(addr: CodeAddr, word: u32, it: It) -> bool {
        let (first, second) = ((word >> 16) as u16, word as u16);
        let bytes: Vec<u8> = [first, second].iter().flat_map(|halfword| halfword.to_le_bytes()).collect();
        let word = if len(first) == 2 { word & 0xffff_0000 } else { word };
        let raw = t32::decode_word(word, it.state());
        let Ok(inst) = decode_within(addr, &bytes, it) else { return false };
        let raw = raw.unwrap();
        assert!(!raw.unpredictable());
        let branch = raw.at(addr.0).branch();
        let flow = inst.flow();
        let shown = format!("{word:08x} {} {flow:?} {branch:?}", raw.at(addr.0));
        let agree = match branch.kind {
            BranchKind::None => matches!(
                flow,
                Flow::Next
                    | Flow::Unsupported(
                        Unsupported::ByteOrder | Unsupported::System | Unsupported::PcAndStack
                    )
            ),
            BranchKind::Direct => match flow {
                Flow::Jump { target } | Flow::Cond { target, .. } | Flow::CompareZero { target, .. } => {
                    branch.target == Some(target.0)
                }
                _ => false,
            },
            BranchKind::DirectCall => match flow {
                Flow::Call { target } | Flow::CallA32 { target } => branch.target == Some(target.0),
                _ => false,
            },
            BranchKind::Indirect | BranchKind::Return => {
                matches!(
                    flow,
                    Flow::JumpIndirect
                        | Flow::Return
                        | Flow::Table { .. }
                        | Flow::AddToPc { .. }
                        | Flow::JumpA32 { .. }
                        | Flow::Unsupported(Unsupported::Jazelle | Unsupported::PcAndStack)
                ) || flow == Flow::Jump { target: addr.add(4) }
            }
            BranchKind::IndirectCall => flow == Flow::CallIndirect,
            BranchKind::ExceptionReturn => flow == Flow::Unsupported(Unsupported::ExceptionReturn),
            BranchKind::SystemCall => {
                matches!(flow, Flow::Next | Flow::Unsupported(Unsupported::System))
            }
            BranchKind::Exception | BranchKind::Halt => {
                matches!(flow, Flow::Undefined | Flow::Breakpoint | Flow::Unsupported(Unsupported::System))
            }
        };
        assert!(agree, "{shown}");
        // An address that the specification names is the one that is relocated.
        let label = raw.operands().as_slice().iter().find_map(|operand| match *operand {
            Operand::Label { offset, pc } => Some(pc.target(addr.0, offset, 32)),
            _ => None,
        });
        match inst.pc_use() {
            PcUse::Literal(literal) => assert_eq!(label, Some(literal.target.0), "{shown}"),
            PcUse::Address { value, .. } if first >> 8 != 0x46 => assert_eq!(label, Some(value.0), "{shown}"),
            PcUse::Unknown => panic!("no known use of the PC: {shown}"),
            _ => assert!(flow != Flow::Next || label.is_none(), "{shown}"),
        }
        true
    }

    #[test]
    fn every_halfword_is_what_the_specification_says() {
        // itt ne: the first member, then the last.
        let first = It::begun_by(0xbf1c);
        for it in [It::OUTSIDE, first, first.advanced()] {
            for addr in [AT, EVEN] {
                let accepted = (0..=0xe7ff_u32).filter(|halfword| judge(addr, halfword << 16, it)).count();
                assert!(accepted > 40_000, "{accepted}");
            }
        }
    }

    #[test]
    fn random_words_are_what_the_specification_says() {
        let mut state = 1_u64;
        let mut accepted = 0;
        for _ in 0..500_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut word = (state >> 32) as u32 | 0xe800_0000;
            if state >> 8 & 3 == 0 {
                word |= 0x000f_0000;
            }
            accepted += usize::from(len((word >> 16) as u16) == 4 && judge(AT, word, It::OUTSIDE));
        }
        assert!(accepted > 80_000, "{accepted}");
    }
}

//! One instruction, and what a relocator must know of it.

use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use super::{Bases, Flow, MAX_INST_LEN, Pointer, flow::flow, pointer::pointer, quick};
use crate::{CodeAddr, DecodeError};

/// Which legacy prefixes stand before the opcode (SDM 2.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Prefixes {
    /// `66`, unless REX.W overrides it.
    pub operand_size: bool,
    /// `67`.
    pub address_size: bool,
    /// `F2`: BND on a branch.
    pub repne: bool,
    /// `F3`.
    pub rep: bool,
    /// How many bytes the legacy prefixes and a REX take.
    pub len: u8,
}

impl Prefixes {
    pub(super) fn scan(bytes: &[u8]) -> Self {
        let mut found = Self::default();
        for &byte in bytes {
            match byte {
                0x66 => found.operand_size = true,
                0x67 => found.address_size = true,
                0xf2 => found.repne = true,
                0xf3 => found.rep = true,
                0xf0 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65 => {}
                0x40..=0x4f => {
                    // A REX counts only right before the opcode. A legacy prefix behind it cancels it, and goes on.
                }
                _ => break,
            }
            found.len += 1;
        }
        // Compilers pad a call of __tls_get_addr to `66 66 48 E8`: REX.W overrides 66, whoever made the processor.
        let rex_w = bytes[..usize::from(found.len)].last().is_some_and(|last| last & 0xf8 == 0x48);
        found.operand_size &= !rex_w;
        found
    }
}

/// A memory operand relative to RIP, or to EIP under `67`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RipOperand {
    /// The address without a segment's base.
    pub target: CodeAddr,
    /// Where the 32-bit displacement lies in the instruction.
    pub field: u8,
    /// The base is EIP: the sum wraps at 4 GiB.
    pub wraps: bool,
    /// How many bytes may be accessed; 0 if the instruction only computes the address or ignores it.
    pub access: u16,
}

/// An instruction with its address and its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Inst {
    addr: CodeAddr,
    bytes: [u8; MAX_INST_LEN],
    len: u8,
    prefixes: Prefixes,
    flow: Flow,
    rip: Option<RipOperand>,
    padding: bool,
    sets_fip: bool,
    stores_fip: bool,
}

impl Inst {
    /// The address it runs at.
    #[must_use]
    pub const fn addr(&self) -> CodeAddr {
        self.addr
    }

    /// The address behind it: what RIP-relative displacements count from.
    #[must_use]
    pub const fn next(&self) -> CodeAddr {
        self.addr.add(self.len as u64)
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// Its legacy prefixes.
    #[must_use]
    pub const fn prefixes(&self) -> Prefixes {
        self.prefixes
    }

    /// How it leaves.
    #[must_use]
    pub const fn flow(&self) -> Flow {
        self.flow
    }

    /// Its RIP-relative operand.
    #[must_use]
    pub const fn rip_operand(&self) -> Option<RipOperand> {
        self.rip
    }

    /// The registers through which its RIP-relative operand could be reached.
    #[must_use]
    pub fn bases(&self) -> Option<Bases> {
        self.rip.map(|_| quick::bases(self).unwrap_or_else(|| Bases::of(&self.raw())))
    }

    /// As iced-x86 has it.
    pub(super) fn raw(&self) -> Instruction {
        Decoder::with_ip(64, self.bytes(), self.addr.0, DecoderOptions::NONE).decode()
    }

    /// One that has nothing to do with FIP. `whole` is its bytes, as many as there may be at most.
    pub(super) fn plain(
        addr: CodeAddr,
        whole: &[u8],
        prefixes: Prefixes,
        flow: Flow,
        rip: Option<RipOperand>,
        padding: bool,
    ) -> Self {
        let mut bytes = [0; MAX_INST_LEN];
        bytes[..whole.len()].copy_from_slice(whole);
        let len = whole.len() as u8;
        Self { addr, bytes, len, prefixes, flow, rip, padding, sets_fip: false, stores_fip: false }
    }

    /// What it does with its RIP-relative operand, if it is a `lea`.
    #[must_use]
    pub fn pointer(&self) -> Option<Pointer> {
        self.rip.and_then(|_| pointer(self.bytes()))
    }

    /// The `jmp` to where this indirect call goes. None if that depends on the stack pointer, or may depend on what the call
    /// pushes, as through memory that is not relative to RIP.
    #[must_use]
    pub fn jump_to_callee(&self) -> Option<Self> {
        if self.flow != Flow::CallIndirect {
            return None;
        }
        let through_register = || {
            let raw = self.raw();
            raw.op0_kind() == OpKind::Register && raw.op0_register() != Register::RSP
        };
        let modrm = match self.rip {
            Some(operand) => usize::from(operand.field) - 1,
            None if through_register() => usize::from(self.len) - 1,
            None => return None,
        };
        let mut bytes = self.bytes;
        // FF /2 is `call`, FF /4 is `jmp`.
        bytes[modrm] ^= (2 ^ 4) << 3;
        let jump = decode(self.addr, &bytes[..usize::from(self.len)]).ok()?;
        (jump.flow == Flow::JumpIndirect).then_some(jump)
    }

    /// A `nop` of any length or an `int3`: what compilers and linkers put between functions.
    #[must_use]
    pub const fn is_padding(&self) -> bool {
        self.padding
    }

    /// An x87 instruction that sets FIP, the address of the last such instruction (SDM volume 1, 8.1.8).
    #[must_use]
    pub const fn sets_fip(&self) -> bool {
        self.sets_fip
    }

    /// It stores FIP to memory (`fnstenv`, `fnsave`, `fxsave`, `xsave` and their kin).
    #[must_use]
    pub const fn stores_fip(&self) -> bool {
        self.stores_fip
    }
}

/// Decodes the first instruction of `bytes`, which runs at `addr`.
///
/// The first call in a process that needs it builds the decoder's tables, which allocates; later calls do not. The
/// instructions that compilers write most don't need it.
///
/// # Errors
///
/// [`DecodeError`] if there is no whole, defined instruction.
pub fn decode(addr: CodeAddr, bytes: &[u8]) -> Result<Inst, DecodeError> {
    let bytes = &bytes[..bytes.len().min(MAX_INST_LEN)];
    let prefixes = Prefixes::scan(bytes);
    quick::decode(addr, bytes, prefixes).map_or_else(|| thorough(addr, bytes, prefixes), Ok)
}

/// As iced-x86 has it.
pub(super) fn thorough(addr: CodeAddr, bytes: &[u8], prefixes: Prefixes) -> Result<Inst, DecodeError> {
    let mut decoder = Decoder::with_ip(64, bytes, addr.0, DecoderOptions::NONE);
    let raw = decoder.decode();
    if raw.is_invalid() {
        return Err(match decoder.last_error() {
            DecoderError::NoMoreBytes if bytes.len() < MAX_INST_LEN => DecodeError::Truncated,
            _ => DecodeError::Undefined,
        });
    }
    let rip = raw.is_ip_rel_memory_operand().then(|| RipOperand {
        target: CodeAddr(raw.ip_rel_memory_address()),
        field: decoder.get_constant_offsets(&raw).displacement_offset() as u8,
        wraps: raw.memory_base() == Register::EIP,
        access: access(&raw),
    });
    let padding = matches!(raw.mnemonic(), Mnemonic::Nop | Mnemonic::Int3);
    let flow = flow(&raw, prefixes, bytes);
    let plain = Inst::plain(addr, &bytes[..raw.len()], prefixes, flow, rip, padding);
    Ok(Inst {
        sets_fip: matches!(bytes.get(usize::from(prefixes.len)), Some(0xd8..=0xdf))
            && !keeps_fip(raw.mnemonic()),
        stores_fip: stores_fip(raw.mnemonic()),
        ..plain
    })
}

/// x87 control instructions leave FIP as it is, clear it, or load it from memory.
fn keeps_fip(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Fldcw
            | Mnemonic::Fnstcw
            | Mnemonic::Fnstsw
            | Mnemonic::Fnclex
            | Mnemonic::Fninit
            | Mnemonic::Fldenv
            | Mnemonic::Fnstenv
            | Mnemonic::Frstor
            | Mnemonic::Fnsave
    )
}

fn stores_fip(mnemonic: Mnemonic) -> bool {
    matches!(
        mnemonic,
        Mnemonic::Fnstenv
            | Mnemonic::Fstenv
            | Mnemonic::Fnsave
            | Mnemonic::Fsave
            | Mnemonic::Fxsave
            | Mnemonic::Fxsave64
            | Mnemonic::Xsave
            | Mnemonic::Xsave64
            | Mnemonic::Xsavec
            | Mnemonic::Xsavec64
            | Mnemonic::Xsaveopt
            | Mnemonic::Xsaveopt64
            | Mnemonic::Xsaves
            | Mnemonic::Xsaves64
    )
}

/// The extent of an XSAVE area is known to the processor only; this is above every one that exists.
const XSAVE_AREA: u16 = 16 * 1024;

fn access(raw: &Instruction) -> u16 {
    match raw.mnemonic() {
        Mnemonic::Lea | Mnemonic::Nop | Mnemonic::Reservednop => 0,
        _ => match raw.memory_size().size() {
            0 => XSAVE_AREA,
            size => size as u16,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_a_jump_unless_the_stack_pointer_matters() {
        let jump = |bytes: &[u8]| {
            let jump = decode(CodeAddr(0x1000), bytes).unwrap().jump_to_callee()?;
            Some(jump.bytes().to_vec())
        };
        // call rax; call r12; notrack call r11
        assert_eq!(jump(&[0xff, 0xd0]), Some(vec![0xff, 0xe0]));
        assert_eq!(jump(&[0x41, 0xff, 0xd4]), Some(vec![0x41, 0xff, 0xe4]));
        assert_eq!(jump(&[0x3e, 0x41, 0xff, 0xd3]), Some(vec![0x3e, 0x41, 0xff, 0xe3]));
        // call [rip + 0x100]; call fs:[rip + 0x100]
        assert_eq!(jump(&[0xff, 0x15, 0, 1, 0, 0]), Some(vec![0xff, 0x25, 0, 1, 0, 0]));
        assert_eq!(jump(&[0x64, 0xff, 0x15, 0, 1, 0, 0]), Some(vec![0x64, 0xff, 0x25, 0, 1, 0, 0]));
        // call rsp; call [rax]; call [rsp + 8]; call +0; jmp rax
        for none in
            [&[0xff, 0xd4][..], &[0xff, 0x10], &[0xff, 0x54, 0x24, 8], &[0xe8, 0, 0, 0, 0], &[0xff, 0xe0]]
        {
            assert_eq!(jump(none), None);
        }
    }
}

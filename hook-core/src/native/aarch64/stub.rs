//! The code that is written for each thing that is attached to a function.
//!
//! A jump stub goes where a word in memory says. The word is all that changes when something is attached or removed: one
//! store, and whoever comes by goes the old way or the new one. An indirect jump takes a register. At a function's entry
//! X16 and X17 are free (AAPCS64, 6.1.1); in the middle of one they are pushed by the first stub of the chain, stay on the
//! stack along it, and are popped by what the chain ends in ([`AFTER_PROBE`]).
//!
//! A link stub jumps to the routine of [`super::entry`] that tells a listener, with the address of its literals in X16. The
//! routine goes on through the stub's word.
//!
//! # Safety
//! The literals are read at an address that only a link stub gives. A stub is freed when no
//! thread has such an address.

use grapnel_relocator::Isa;

use crate::native::{LinkKind, StubKind};

/// `bti c`, which costs nothing where it isn't enforced, and which `br x16` and `br x17` may land on.
const LANDING_PAD: u32 = 0xd503_245f;
/// `stp x16, x17, [sp, #-16]!`.
const PUSH: u32 = 0xa9bf_47f0;
const NOP: u32 = 0xd503_201f;

/// What the code behind a probe begins with: `ldp x16, x17, [sp], #16`.
pub(crate) const AFTER_PROBE: &[u8] = &0xa8c1_47f0_u32.to_le_bytes();

/// What stubs are written in.
pub(crate) const STUBS: Isa = Isa::Aarch64;

pub(crate) const JUMP_STUB_LEN: usize = 24;
pub(crate) const LINK_STUB_LEN: usize = 48;

/// The literals of a link stub, counted from the first, which is the routine's address.
pub(super) const WORD: usize = 8;
const LINK: usize = 16;
pub(super) const SITE: usize = 24;

/// A stub that goes where the word at `word` says.
pub(crate) fn jump_stub(kind: StubKind, _: u64, word: u64) -> Option<[u8; JUMP_STUB_LEN]> {
    let first = match kind {
        StubKind::Entry => LANDING_PAD,
        StubKind::Inside => PUSH,
    };
    let code = [
        first,
        0x5800_0070, // ldr x16, the literal
        0xf940_0210, // ldr x16, [x16]
        0xd61f_0200, // br x16
        word as u32,
        (word >> 32) as u32,
    ];
    Some(bytes(&code))
}

/// A stub that has `routine` tell `link`, and go on where the word at `word` says.
pub(crate) fn link_stub(
    kind: LinkKind,
    _: u64,
    word: u64,
    routine: u64,
    link: u64,
    site: u64,
) -> Option<[u8; LINK_STUB_LEN]> {
    let first = match kind.stub {
        StubKind::Entry => LANDING_PAD,
        StubKind::Inside => NOP,
    };
    let mut code = [0; LINK_STUB_LEN / 4];
    code[..4].copy_from_slice(&[
        first,
        0x1000_0070, // adr x16, the literals
        0x5800_0051, // ldr x17, the first of them
        0xd61f_0220, // br x17
    ]);
    for (slots, literal) in code[4..].chunks_exact_mut(2).zip([routine, word, link, site]) {
        slots.copy_from_slice(&[literal as u32, (literal >> 32) as u32]);
    }
    Some(bytes(&code))
}

fn bytes<const N: usize>(words: &[u32]) -> [u8; N] {
    let mut out = [0; N];
    for (slot, byte) in out.iter_mut().zip(words.iter().flat_map(|word| word.to_le_bytes())) {
        *slot = byte;
    }
    out
}

/// The link literal of the stub with these literals.
///
/// # Safety
/// `at` was given by a link stub.
pub(crate) unsafe fn link_of_stub(at: u64) -> u64 {
    // SAFETY: the stub's literals are there, and the stub stays while a thread has their address.
    unsafe { (at as usize as *const u64).byte_add(LINK).read() }
}

/// Its site literal: where the probe is that the stub serves.
///
/// # Safety
/// As [`link_of_stub`].
pub(crate) unsafe fn site_of_stub(at: u64) -> u64 {
    // SAFETY: as above.
    unsafe { (at as usize as *const u64).byte_add(SITE).read() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_arch::{CodeAddr, aarch64::text};

    fn listing(code: &[u8]) -> Vec<String> {
        let insts = code.chunks_exact(4).zip((0x1000..).step_by(4));
        insts.map(|(bytes, at)| text(CodeAddr(at), bytes).to_lowercase()).collect()
    }

    #[test]
    fn stubs_are_the_instructions_that_they_claim_to_be() {
        for (kind, first) in [(StubKind::Entry, "bti c"), (StubKind::Inside, "stp x16, x17, [sp, #")] {
            let code = listing(&jump_stub(kind, 0x1000, 0x2000).unwrap()[..16]);
            assert!(code[0].starts_with(first) && code[1].contains("1010"), "{code:?}");
            assert_eq!(code[2..], ["ldr x16, [x16]", "br x16"]);
        }
        assert_eq!(&jump_stub(StubKind::Entry, 0, 7).unwrap()[16..], 7u64.to_le_bytes());
        assert!(listing(AFTER_PROBE)[0].starts_with("ldp x16, x17, [sp], #"), "{:?}", listing(AFTER_PROBE));
        for (kind, first) in [(StubKind::Entry, "bti c"), (StubKind::Inside, "nop")] {
            let code = link_stub(LinkKind::plain(kind), 0x1000, 6, 7, 8, 9).unwrap();
            let text = listing(&code[..16]);
            assert!(text[0].starts_with(first), "{text:?}");
            assert!(text[1].contains("1010") && text[2].contains("1010") && text[3] == "br x17", "{text:?}");
            let literals = code[16..].as_ptr() as u64;
            // SAFETY: the code lies here as in a stub.
            unsafe {
                assert_eq!((link_of_stub(literals), site_of_stub(literals)), (8, 9));
            }
        }
    }
}

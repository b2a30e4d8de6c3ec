//! The code that is written for each thing that is attached to a function.
//!
//! A jump stub goes where a word in memory says, and changes no register. The word is all that changes when something
//! is attached or removed: one store, and whoever comes by goes the old way or the new one.
//!
//! A link stub calls the routine of [`super::entry`] that tells a listener, and then goes on through its word. The
//! routine knows which stub called it by the return address, behind which the stub has its literals.
//!
//! # Safety
//! The literals are read relative to a return address that only a link stub's `call` pushes. A stub is
//! freed when no such address is left.

use grapnel_relocator::Isa;

use super::returns::go_in_routine;
use crate::native::{LinkKind, StubKind};

/// `endbr64`, which costs nothing where it isn't enforced.
const LANDING_PAD: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
/// `lea rsp, [rsp - 128]`: past the red zone, with the flags as they are.
pub(super) const PASS_RED_ZONE: [u8; 5] = [0x48, 0x8d, 0x64, 0x24, 0x80];
/// `lea rsp, [rsp + 128]`.
pub(super) const RETURN_TO_RED_ZONE: [u8; 8] = [0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];

/// What stubs are written in.
pub(crate) const STUBS: Isa = Isa::X86_64;

/// `endbr64; jmp [rip + word]`.
pub(crate) const JUMP_STUB_LEN: usize = 10;
pub(crate) const LINK_STUB_LEN: usize = 64;

/// Where the call of a link stub returns to, and its literals, counted from its start.
pub(super) const RETURN: usize = 11;
/// Where a stub that has the return watched goes on, with a return point's address in the return slot.
pub(super) const WATCHED: usize = RETURN + 6;
const GO_IN: usize = 32;
const ROUTINE: usize = 40;
const LINK: usize = 48;
const SITE: usize = 56;

/// What the code behind a probe begins with: nothing, since no stub leaves anything on the stack.
pub(crate) const AFTER_PROBE: &[u8] = &[];

/// A stub at `at` that goes where the word at `word` says. `None` if the word is out of reach.
pub(crate) fn jump_stub(_: StubKind, at: u64, word: u64) -> Option<[u8; JUMP_STUB_LEN]> {
    let mut code = [0; JUMP_STUB_LEN];
    code[..4].copy_from_slice(&LANDING_PAD);
    code[4..].copy_from_slice(&through(0x25, at + 4, word)?);
    Some(code)
}

/// A stub at `at` that calls `routine` for `link`, and goes on where the word at `word` says.
///
/// Where the return is watched, it goes by the call ahead of the return point (see [`super::returns`]), which leads back to
/// it.
pub(crate) fn link_stub(
    kind: LinkKind,
    at: u64,
    word: u64,
    routine: u64,
    link: u64,
    site: u64,
) -> Option<[u8; LINK_STUB_LEN]> {
    let mut code = [0x90; LINK_STUB_LEN];
    match kind.stub {
        StubKind::Entry => code[..4].copy_from_slice(&LANDING_PAD),
        StubKind::Inside => code[..5].copy_from_slice(&PASS_RED_ZONE),
    }
    let call = RETURN - 6;
    code[call..RETURN].copy_from_slice(&through(0x15, at + call as u64, at + ROUTINE as u64)?);
    let go_in = through(0x25, at + RETURN as u64, at + GO_IN as u64)?;
    let step: &[u8] = match (kind.stub, kind.returns) {
        (StubKind::Inside, _) => &RETURN_TO_RED_ZONE,
        (StubKind::Entry, true) => &go_in,
        (StubKind::Entry, false) => &[],
    };
    let end = RETURN + step.len();
    code[RETURN..end].copy_from_slice(step);
    code[end..end + 6].copy_from_slice(&through(0x25, at + end as u64, word)?);
    for (offset, literal) in [(GO_IN, go_in_routine()), (ROUTINE, routine), (LINK, link), (SITE, site)] {
        code[offset..offset + 8].copy_from_slice(&literal.to_le_bytes());
    }
    Some(code)
}

/// `call [rip + place]` (15) or `jmp [rip + place]` (25) at `at`.
fn through(modrm: u8, at: u64, place: u64) -> Option<[u8; 6]> {
    let distance = place.wrapping_sub(at.wrapping_add(6)).cast_signed();
    let [a, b, c, d] = i32::try_from(distance).ok()?.to_le_bytes();
    Some([0xff, modrm, a, b, c, d])
}

/// The link literal of the stub whose call returns to `at`.
///
/// # Safety
/// `at` was pushed by a link stub's call.
pub(crate) unsafe fn link_of_stub(at: u64) -> u64 {
    // SAFETY: the stub's literals lie behind its call, and the stub stays while a thread may return to it.
    unsafe { (at as usize as *const u64).byte_add(LINK - RETURN).read() }
}

/// Its site literal: where the probe is that the stub serves.
///
/// # Safety
/// As [`link_of_stub`].
pub(crate) unsafe fn site_of_stub(at: u64) -> u64 {
    // SAFETY: as above.
    unsafe { (at as usize as *const u64).byte_add(SITE - RETURN).read() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use grapnel_arch::{CodeAddr, x86_64::text};

    fn listing(code: &[u8]) -> Vec<String> {
        let (mut at, mut out) = (0, Vec::new());
        while at < code.len() {
            let addr = CodeAddr(0x1000 + at as u64);
            let inst = grapnel_arch::x86_64::decode(addr, &code[at..]).unwrap();
            out.push(text(addr, inst.bytes()));
            at += inst.bytes().len();
        }
        out
    }

    #[test]
    fn stubs_are_the_instructions_that_they_claim_to_be() {
        let jump = jump_stub(StubKind::Entry, 0x1000, 0x2000).unwrap();
        assert_eq!(listing(&jump).len(), 2);
        assert!(listing(&jump)[1].contains("2000"), "{:?}", listing(&jump));
        let (entry, inside) = (LinkKind::plain(StubKind::Entry), LinkKind::plain(StubKind::Inside));
        let watching = LinkKind { returns: true, ..entry };
        for (kind, end) in [(entry, RETURN + 6), (watching, WATCHED + 6), (inside, RETURN + 14)] {
            let code = link_stub(kind, 0x1000, 0x2000, 7, 8, 9).unwrap();
            let text = listing(&code[..end]);
            assert!(text.last().unwrap().contains("2000"), "{text:?}");
            assert!(text.iter().any(|line| line.contains("1028")), "{text:?}");
            let returned = code.as_ptr() as u64 + RETURN as u64;
            // SAFETY: the code lies here as in a stub.
            unsafe {
                assert_eq!((link_of_stub(returned), site_of_stub(returned)), (8, 9));
            }
        }
        assert_eq!(jump_stub(StubKind::Entry, 0x1000, 1 << 40), None);
    }
}

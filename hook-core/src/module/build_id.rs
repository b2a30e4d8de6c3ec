//! The build id: the number that tells a build from all others.

use alloc::vec::Vec;
use core::fmt;

/// Longer ones than any linker makes are none.
const LEN_MAX: usize = 64;

/// What a linker put into the note of owner `GNU` and type `NT_GNU_BUILD_ID`, 20 bytes as a rule. Shown in hexadecimal.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BuildId(Vec<u8>);

impl BuildId {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Finds it among the notes of a segment or a section (generic ABI, "Note Section"): `namesz, descsz, type, name,
    /// desc`, with name and descriptor filled up to four bytes.
    pub fn in_notes(mut bytes: &[u8]) -> Option<Self> {
        const NT_GNU_BUILD_ID: u32 = 3;
        while let Some(header) = bytes.first_chunk::<12>() {
            let [a, b, c, d, e, f, g, h, kind @ ..] = *header;
            let (name_len, len) = (u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h]));
            let start = 12usize.checked_add(filled_up(name_len)?)?;
            let descriptor = bytes.get(start..start.checked_add(len as usize)?)?;
            if u32::from_ne_bytes(kind) == NT_GNU_BUILD_ID
                && bytes.get(12..16) == Some(b"GNU\0")
                && (1..=LEN_MAX).contains(&descriptor.len())
            {
                return Some(Self(descriptor.into()));
            }
            bytes = bytes.get(start.checked_add(filled_up(len)?)?..)?;
        }
        None
    }
}

fn filled_up(len: u32) -> Option<usize> {
    (len as usize).checked_next_multiple_of(4)
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(owner: &[u8], kind: u32, descriptor: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [owner.len() as u32, descriptor.len() as u32, kind] {
            out.extend(word.to_ne_bytes());
        }
        for part in [owner, descriptor] {
            out.extend(part);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }

    #[test]
    fn it_is_found_behind_other_notes() {
        let mut notes = note(b"stapsdt\0", 3, b"other");
        notes.extend(note(b"GNU\0", 5, b"property"));
        notes.extend(note(b"GNU\0", 3, b"\x01\xab\xff"));
        let found = BuildId::in_notes(&notes).unwrap();
        assert_eq!((found.as_bytes(), std::format!("{found}")), (&b"\x01\xab\xff"[..], "01abff".into()));
        // Cut anywhere, it is not there.
        for len in 0..notes.len() - 1 {
            assert_eq!(BuildId::in_notes(&notes[..len]), None);
        }
    }

    #[test]
    fn lengths_that_lead_outside_end_the_search() {
        for (name, len) in [(u32::MAX, 4), (4, u32::MAX), (u32::MAX, u32::MAX), (4, 0), (4, 65)] {
            let mut notes: Vec<u8> =
                [name, len, 3].into_iter().flat_map(u32::to_ne_bytes).chain(*b"GNU\0").collect();
            notes.resize(notes.len() + 80, 0);
            assert_eq!(BuildId::in_notes(&notes), None);
        }
    }
}

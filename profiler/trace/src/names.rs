//! What addresses are called, for traces that know it otherwise than from the modules' files.

use crate::varint::{get, put};
use alloc::vec::Vec;

/// The functions at an address: the one whose code it is, and those that were inlined there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The module that the address lies in; 0 for none.
    pub module: u32,
    /// The address that is looked up ([`node_flags`](crate::event::node_flags)): less the module's bias.
    pub address: u64,
    /// The innermost first.
    pub frames: Vec<NamedFrame>,
}

/// A function, as it is shown. What is not known is empty, or 0. Any bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamedFrame {
    /// Its name.
    pub function: Vec<u8>,
    /// Its source file.
    pub file: Vec<u8>,
    /// The line in it.
    pub line: u32,
}

/// The most that a name may have: no person reads longer ones.
const MAX_NAME: usize = 16 << 10;
/// What a record's bytes stay below, nearly: frames beyond are left out.
const ENOUGH: usize = 64 << 10;

/// Module, address, and of each frame the function, the file and the line, all with their lengths.
pub(crate) fn encode(names: &Names) -> Vec<u8> {
    let mut out = Vec::new();
    put(&mut out, u64::from(names.module));
    put(&mut out, names.address);
    for frame in &names.frames {
        for text in [&frame.function, &frame.file] {
            let text = &text[..text.len().min(MAX_NAME)];
            put(&mut out, text.len() as u64);
            out.extend_from_slice(text);
        }
        put(&mut out, u64::from(frame.line));
        if out.len() >= ENOUGH {
            break;
        }
    }
    out
}

/// The inverse of [`encode`]; `None` for bytes that it can't have made.
pub(crate) fn decode(bytes: &[u8]) -> Option<Names> {
    let mut at = 0;
    let module = u32::try_from(get(bytes, &mut at)?).ok()?;
    let address = get(bytes, &mut at)?;
    let mut frames = Vec::new();
    while at < bytes.len() {
        let mut text = || {
            let len = usize::try_from(get(bytes, &mut at)?).ok()?;
            let text = bytes.get(at..)?.get(..len)?.to_vec();
            at += len;
            Some(text)
        };
        let (function, file) = (text()?, text()?);
        let line = u32::try_from(get(bytes, &mut at)?).ok()?;
        frames.push(NamedFrame { function, file, line });
    }
    Some(Names { module, address, frames })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn long_names_are_cut_and_all_comes_back() {
        let frame = |len| NamedFrame { function: vec![b'f'; len], file: b"a.c".to_vec(), line: 7 };
        let names = Names { module: 1, address: u64::MAX, frames: vec![frame(3), frame(0)] };
        assert_eq!(decode(&encode(&names)), Some(names));
        let long = Names { frames: vec![frame(1 << 20); 100], ..Names::default() };
        let back = decode(&encode(&long)).unwrap();
        assert_eq!(back.frames[0].function.len(), MAX_NAME);
        assert!(encode(&long).len() < ENOUGH + 2 * MAX_NAME && back.frames.len() < 100);
        let bytes = encode(&Names { frames: vec![frame(3)], ..Names::default() });
        assert!((3..bytes.len()).all(|end| decode(&bytes[..end]).is_none()));
    }
}

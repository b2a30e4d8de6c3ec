//! Starts of real functions, to be relocated.

use std::str::FromStr;

use grapnel_relocator::{CodeAddr, Isa, redirect};

/// The beginning of a function.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// Its address when its library is loaded.
    pub from: CodeAddr,
    /// Its first bytes.
    pub bytes: Vec<u8>,
}

/// Where the libraries are loaded, within the reach of 32 bits.
const LOADED_AT: u64 = 0x1000_0000;

/// The functions of an instruction set in `inputs/windows.txt`, which has its origin in the README there.
///
/// # Panics
///
/// If that file is damaged.
pub fn starts(isa: Isa) -> Vec<Start> {
    include_str!("inputs/windows.txt")
        .lines()
        .filter_map(|line| {
            let [name, address, code, _] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("four words in: {line}");
            };
            let start = || Start { from: CodeAddr(LOADED_AT + number(address)), bytes: bytes(code) };
            (Isa::from_str(name) == Ok(isa)).then(start)
        })
        .collect()
}

fn number(text: &str) -> u64 {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("an address is hex")
}

fn bytes(code: &str) -> Vec<u8> {
    let pair = |at| u8::from_str_radix(&code[at..at + 2], 16).expect("code is hex");
    (0..code.len()).step_by(2).map(pair).collect()
}

/// How many bytes the redirect takes that a hook would use with memory nearby.
pub fn min_len(isa: Isa) -> usize {
    redirect::lengths(isa).near
}

/// A destination within the reach of every near form.
pub fn near(from: CodeAddr) -> CodeAddr {
    from.add(0x10_0000)
}

/// A destination beyond the reach of every near form.
pub fn far(isa: Isa, from: CodeAddr) -> CodeAddr {
    match isa {
        Isa::X86_64 | Isa::Aarch64 => from.add(0x2000_0000_0000),
        Isa::A32 | Isa::T32 => from.add(0x6000_0000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_two_hundred_for_each_instruction_set() {
        for &isa in Isa::ALL {
            let starts = starts(isa);
            assert_eq!(starts.len(), 200);
            assert!(starts.iter().all(|start| start.bytes.len() == 48));
        }
    }
}

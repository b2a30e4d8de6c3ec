//! The semantic judge sees what it is there to see. Each code here is held against a window that it is right for, and
//! with one fault planted it must be told apart.
#![cfg(feature = "unicorn")]

use grapnel_fuzz::oracle::{
    Verdict,
    semantic::{Machine, Pair},
};
use grapnel_relocator::Isa;

/// A window, and code for another place that does the same.
struct Right<'a> {
    isa: Isa,
    from: u64,
    to: u64,
    source: &'a [u8],
    code_len: usize,
    relocated: &'a [u8],
    relocated_len: usize,
    map: &'a [(usize, usize)],
    clobbers: u32,
}

impl<'a> Right<'a> {
    /// Code whose relocated form is `len` bytes long without its literals. The map ends with the windows' ends.
    fn new(
        isa: Isa,
        (from, to): (u64, u64),
        source: &'a [u8],
        (relocated, relocated_len): (&'a [u8], usize),
        map: &'a [(usize, usize)],
    ) -> Self {
        let code_len = map.last().map_or(0, |&(from, _)| from);
        Self { isa, from, to, source, code_len, relocated, relocated_len, map, clobbers: 0 }
    }
}

impl Right<'_> {
    fn pair<'a>(&'a self, relocated: &'a [u8]) -> Pair<'a> {
        Pair {
            isa: self.isa,
            from: self.from,
            to: self.to,
            source: self.source,
            code_len: self.code_len,
            window_len: self.code_len,
            relocated,
            relocated_len: self.relocated_len,
            map: self.map.to_vec(),
            clobbers: self.clobbers,
            entry: true,
        }
    }

    fn verdict(&self, relocated: &[u8]) -> Verdict {
        let mut machine = Machine::new().unwrap();
        let pair = self.pair(relocated);
        let verdicts = (0..48).map(|seed| machine.judge_pair(&pair, seed).unwrap());
        let mut last = Verdict::Unjudged("never run");
        for verdict in verdicts {
            match verdict {
                Verdict::Mismatch(_) => return verdict,
                Verdict::Same => last = verdict,
                Verdict::Unjudged(_) => {}
            }
        }
        last
    }

    /// The right code is right.
    #[track_caller]
    fn holds(&self) -> &Self {
        assert_eq!(self.verdict(self.relocated), Verdict::Same);
        self
    }

    /// It is wrong with these bytes at this offset.
    #[track_caller]
    fn fault(&self, at: usize, bytes: &[u8]) -> &Self {
        let mut wrong = self.relocated.to_vec();
        wrong[at..at + bytes.len()].copy_from_slice(bytes);
        assert_ne!(wrong, self.relocated, "no fault was planted");
        let verdict = self.verdict(&wrong);
        assert!(matches!(verdict, Verdict::Mismatch(_)), "{verdict:?} for {bytes:02x?} at {at}");
        self
    }

    #[track_caller]
    fn word(&self, at: usize, word: u32) -> &Self {
        self.fault(at, &word.to_le_bytes())
    }

    #[track_caller]
    fn half(&self, at: usize, half: u16) -> &Self {
        self.fault(at, &half.to_le_bytes())
    }
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn halves(halves: &[u16]) -> Vec<u8> {
    halves.iter().flat_map(|half| half.to_le_bytes()).collect()
}

/// What follows a window.
fn and_nops(mut window: Vec<u8>, nop: &[u8]) -> Vec<u8> {
    for _ in 0..16 {
        window.extend(nop);
    }
    window
}

mod a32;
mod aarch64;
mod t32;
mod x86_64;

//! What an instruction does to the stack, and where it goes on: what is followed of code that has no tables.

use super::registers::{LR, PC, R7, R11, SP};

/// An instruction, as far as it is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instruction {
    pub(super) effect: Effect,
    /// In bytes.
    pub(super) len: u64,
    /// It may do nothing, by its own condition.
    pub(super) conditional: bool,
}

/// What an instruction does. Sizes and offsets are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    /// Nothing that is followed.
    Other,
    /// `sp -= size`, then the registers of the mask are stored from sp up, the lowest first.
    Push { mask: u16, size: i32 },
    /// The registers of the mask are loaded from sp up, then `sp += size`.
    Pop { mask: u16, size: i32 },
    /// `*(sp + offset) = lr`
    StoreLink(i32),
    /// `lr = *(sp + offset)`
    LoadLink(i32),
    /// `to = from + add`, each of them sp, r7 or r11.
    Move { to: usize, from: usize, add: i32 },
    /// sp becomes what the code alone doesn't say.
    LosesSp,
    /// Calls a function.
    Call,
    /// Goes on there.
    Branch(u64),
    /// Goes on at one of many places, by a table that may lie behind it.
    Table,
    /// Goes where lr says.
    Return,
    /// Goes where another register or word says.
    Leave,
    /// Never executed.
    Trap,
    /// Makes as many instructions behind it conditional.
    If(u32),
}

/// `to = from + add`
pub(super) fn moved(to: usize, from: usize, add: i32) -> Effect {
    let is_followed = |register| [SP, R7, R11].contains(&register);
    match to {
        SP if !is_followed(from) => Effect::LosesSp,
        SP => Effect::Move { to, from, add },
        R7 | R11 if from == SP || from == to => Effect::Move { to, from, add },
        PC if from == LR && add == 0 => Effect::Return,
        PC => Effect::Leave,
        _ => Effect::Other,
    }
}

/// Of a store of two registers below sp, in this order, or a load of them: those that lie as [`Effect`] has it.
pub(super) fn pair(first: usize, second: usize) -> u16 {
    if first < second { 1 << first | 1 << second } else { 0 }
}

/// The bytes that these registers take.
pub(super) fn count(mask: u16) -> i32 {
    4 * mask.count_ones() as i32
}

/// The n bits of `word` from `at` on.
pub(super) fn field(word: u32, at: u32, n: u32) -> u32 {
    word >> at & ((1 << n) - 1)
}

/// The number of a register in a field of `word`.
pub(super) fn register(word: u32, at: u32) -> usize {
    field(word, at, 4) as usize
}

/// `value`, whose highest bit is number `bits - 1`, with its sign.
pub(super) fn signed(value: u32, bits: u32) -> i32 {
    (value << (32 - bits)).cast_signed() >> (32 - bits)
}

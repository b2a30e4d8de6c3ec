//! Stores of the PC itself: `push {fp, ip, lr, pc}`, and `str pc`.
//!
//! What is stored is what the original stores, its address plus 8, and the stack pointer is never above it. The stores keep
//! their order, but for that of the base among the list.

use grapnel_arch::a32::{
    Cond, Form, Inst, SP, Unsupported,
    encode::{Modified, Offset12, add, ldr, pop_one, push_one, stm_up, str, sub},
};

use super::{
    Insts, culprit,
    liveness::Sight,
    scratch::{Scratch, Way, choose},
};
use crate::Error;

/// STM of a list with the PC in it, the highest of all.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StoreList {
    base: u8,
    /// The list without the PC, and without the base if that has moved by then.
    list: u16,
    /// The first register lies 4 above the base.
    before: bool,
    /// The base itself is the lowest register of the list: what is to be added to it to have its original value.
    stores_base: Option<Modified>,
    /// What is taken from the base before, and added to it behind.
    dropped: Modified,
    added: Modified,
    /// Where the PC's slot is, from the base.
    slot: i64,
    carrier: Carrier,
}

/// The register that takes the value to its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    /// It was just stored, in this slot, and is loaded again from there.
    Stored {
        register: u8,
        slot: i64,
    },
    Scratch(Scratch),
}

/// The most instructions that it takes: one for each end of the base, two stores, two for the base among them, and three
/// for the carrier, which is kept on the stack.
pub(super) const MAX_STORE_LIST: usize = 9;

/// STR of the PC to the stack, with another register kept below it meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct StoreToStack {
    /// What is taken from SP before.
    dropped: Modified,
    /// The slot, from SP with the kept register pushed.
    slot: Offset12,
}

/// The most instructions that it takes.
pub(super) const MAX_STORE_TO_STACK: usize = 5;

const KEPT: u8 = 0;

impl StoreList {
    /// How to relocate the STM at a place of the window; `None` if it is `push {pc}`, and no register is free.
    pub(super) fn plan(
        insts: &Insts,
        sight: &Sight,
        number: usize,
        inst: &Inst,
    ) -> Result<Option<Self>, Error> {
        let word = inst.word();
        let (before, up, writes_back) = (word >> 24 & 1 == 1, word >> 23 & 1 == 1, word >> 21 & 1 == 1);
        let (base, list) = ((word >> 16 & 15) as u8, word as u16 & 0x7fff);
        let bytes = (list.count_ones() + 1) * 4;
        let whole = Modified::new(bytes).unwrap_or(Modified::ZERO);
        // Downwards, the base is moved first, and the same slots are counted from there: one higher for DA than for DB.
        let before = before == up;
        let carriers = list & !(1 << base | 1 << SP);
        let stores_base = !up && list >> base & 1 == 1;
        let is_lowest = list.trailing_zeros() == u32::from(base);
        if stores_base && (before || !is_lowest || carriers == 0) {
            return Err(Error::Unsupported {
                culprit: culprit(inst),
                reason: Unsupported::StoresBase.into(),
            });
        }
        let first = if before { 4 } else { 0 };
        let stored = (carriers != 0).then(|| {
            let register = carriers.trailing_zeros();
            let below = i64::from((list & ((1 << register) - 1)).count_ones());
            Carrier::Stored { register: register as u8, slot: first + below * 4 }
        });
        let scratch = || choose(insts, sight, number, inst, true).map(Carrier::Scratch);
        // On the stack a slot can be read again; elsewhere, who knows what a read does. There any register is kept on the
        // stack meanwhile, which the list may be stored from before.
        let kept = (0..SP).find(|&register| register != base).filter(|_| base != SP);
        let kept = kept.map(|register| Carrier::Scratch(Scratch { register, way: Way::Spill }));
        let carrier = match stored.filter(|_| base == SP) {
            Some(stored) => stored,
            None => match scratch() {
                Ok(carrier) => carrier,
                Err(Error::NoScratch { .. }) if let Some(kept) = kept => kept,
                Err(_) if list == 0 && base == SP && !up && writes_back && !before => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        Ok(Some(Self {
            base,
            list: if stores_base { list & !(1 << base) } else { list },
            before: before || stores_base,
            stores_base: stores_base.then_some(whole),
            dropped: if up { Modified::ZERO } else { whole },
            added: if up == writes_back { whole } else { Modified::ZERO },
            slot: first + i64::from(list.count_ones()) * 4,
            carrier,
        }))
    }

    pub(super) fn scratch(&self) -> Option<Scratch> {
        match self.carrier {
            Carrier::Scratch(scratch) => Some(scratch),
            Carrier::Stored { .. } => None,
        }
    }

    /// Writes it; `literal` writes the load of the value into a register.
    pub(super) fn emit(&self, cond: Cond, code: &mut impl Code) {
        let Self { base, list, .. } = *self;
        let offset = |slot| Offset12::new(slot).unwrap_or(Offset12::ZERO);
        if self.dropped != Modified::ZERO {
            code.word(sub(cond, base, base, self.dropped));
        }
        if list != 0 {
            code.word(stm_up(cond, base, list, self.before));
        }
        let (Carrier::Stored { register, .. } | Carrier::Scratch(Scratch { register, .. })) = self.carrier;
        let spills = self.scratch().is_some_and(|scratch| scratch.way == Way::Spill);
        if spills {
            code.word(push_one(cond, register));
        }
        if let Some(moved) = self.stores_base {
            code.word(add(cond, register, base, moved));
            code.word(str(cond, register, base, Offset12::ZERO));
        }
        code.literal(cond, register);
        code.word(str(cond, register, base, offset(self.slot)));
        if spills {
            code.word(pop_one(cond, register));
        }
        if let Carrier::Stored { register, slot } = self.carrier {
            code.word(ldr(cond, register, base, offset(slot)));
        }
        if self.added != Modified::ZERO {
            code.word(add(cond, base, base, self.added));
        }
    }
}

/// Where instructions are written to.
pub(super) trait Code {
    fn word(&mut self, word: u32);
    /// The load of the instruction's literal into a register.
    fn literal(&mut self, cond: Cond, register: u8);
}

impl StoreToStack {
    /// `push {pc}`.
    pub(super) fn push() -> Option<Self> {
        Some(Self { dropped: Modified::new(4)?, slot: Offset12::new(4)? })
    }

    /// The instruction, if it is `str pc, [sp, #n]` or `str pc, [sp, #-n]!`.
    pub(super) fn of(inst: &Inst) -> Option<Self> {
        let word = inst.word();
        let (base, offset) = ((word >> 16 & 15) as u8, word & 0xfff);
        if inst.form() != Form::Word || base != SP {
            return None;
        }
        let (before, up, writes) = (word >> 24 & 1 == 1, word >> 23 & 1 == 1, word >> 21 & 1 == 1);
        match (before, up, writes) {
            (true, true, false) => {
                Some(Self { dropped: Modified::ZERO, slot: Offset12::new(i64::from(offset) + 4)? })
            }
            (true, false, true) if offset >= 4 && offset % 4 == 0 => {
                Some(Self { dropped: Modified::new(offset)?, slot: Offset12::new(4)? })
            }
            _ => None,
        }
    }

    /// Writes it.
    pub(super) fn emit(&self, cond: Cond, code: &mut impl Code) {
        if self.dropped != Modified::ZERO {
            code.word(sub(cond, SP, SP, self.dropped));
        }
        code.word(push_one(cond, KEPT));
        code.literal(cond, KEPT);
        code.word(str(cond, KEPT, SP, self.slot));
        code.word(pop_one(cond, KEPT));
    }
}

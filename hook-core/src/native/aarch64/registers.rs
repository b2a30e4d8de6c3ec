//! What a stub saves, and how listeners see it.
//!
//! # Safety
//! [`Saved`] is filled by the routines of [`super::entry`] and [`super::returns`] alone, which also load what it holds back
//! into the registers.

/// The general registers of a call or of a probed place.
///
/// At a function's entry `x16` and `x17` are what the way to the listener left in them (AAPCS64, 6.1.1), and `x30` is the
/// return address; changes of the three are ignored there, and of `x16` and `x30` where it has returned.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Registers {
    /// X0 to X30.
    pub x: [u64; 31],
    /// Changes of it are ignored.
    pub sp: u64,
    /// The probed instruction, the function's entry, or where it returns to. Changes of it are ignored.
    pub pc: u64,
    /// NZCV, in probes only. At a function's entry and return the ABI gives the flags no meaning, and they read as 0.
    pub pstate: u64,
}

/// What lies on the stack while a listener runs.
#[repr(C, align(16))]
#[derive(Debug)]
pub(crate) struct Saved {
    pub(crate) general: Registers,
    /// The vector registers. Those of which the listener isn't told may not have been saved.
    vectors: [[u64; 2]; 32],
    fpcr: u64,
    fpsr: u64,
    /// How many of the vector registers the listener is shown.
    shown: u64,
    /// The listener's own word of this call.
    pub(crate) word: u64,
    /// Where the stub's literals are; in returns, the point's number.
    pub(crate) stub: u64,
    /// The return address of the hooked function's call; in returns, first the point's. Not there in probes.
    pub(crate) return_address: u64,
}

const _: () = assert!(core::mem::offset_of!(Saved, vectors) == 272);
const _: () = assert!(core::mem::offset_of!(Saved, shown) == 800);
const _: () = assert!(size_of::<Saved>() == 832);

/// The registers of the first eight integer arguments are X0 to X7.
const ARGUMENTS: usize = 8;

impl Saved {
    /// What tells this call from all others that are under way: its stack pointer.
    pub(crate) fn call(&self) -> usize {
        self.general.sp as usize
    }

    /// Says where the function returns to.
    pub(crate) fn set_return_address(&mut self, address: u64) {
        self.return_address = address;
    }

    /// The listener is shown a place between instructions, where the ABI gives the flags no meaning.
    pub(crate) fn at_boundary(&mut self, address: u64) {
        self.general.pc = address;
        self.general.pstate = 0;
    }

    /// The listener is shown the place of a probe.
    pub(crate) fn at_probe(&mut self, address: u64) {
        self.general.pc = address;
    }

    /// Where the probe is.
    pub(crate) fn place(&self) -> u64 {
        self.general.pc
    }

    /// An integer argument at a function's entry.
    pub(crate) fn argument(&self, index: usize) -> u64 {
        match self.general.x.get(index).filter(|_| index < ARGUMENTS) {
            Some(value) => *value,
            // SAFETY: the caller of the hooked function passed that many (the promise of the listener's question).
            None => unsafe { self.stack_argument(index).read() },
        }
    }

    pub(crate) fn set_argument(&mut self, index: usize, value: u64) {
        let stack = self.stack_argument(index);
        match self.general.x.get_mut(index).filter(|_| index < ARGUMENTS) {
            Some(register) => *register = value,
            // SAFETY: the caller of the hooked function passed that many, and the place belongs to the callee
            // (AAPCS64, 6.4.2).
            None => unsafe { stack.write(value) },
        }
    }

    /// The arguments in memory lie from the stack pointer on.
    fn stack_argument(&self, index: usize) -> *mut u64 {
        let place = self.general.sp as usize as *mut u64;
        place.wrapping_add(index.saturating_sub(ARGUMENTS))
    }

    pub(crate) fn result(&self) -> u64 {
        self.general.x[0]
    }

    pub(crate) fn set_result(&mut self, value: u64) {
        self.general.x[0] = value;
    }

    /// A vector register, if it is shown.
    pub(crate) fn vector(&self, index: usize) -> Option<[u64; 2]> {
        self.vectors.get(index).filter(|_| (index as u64) < self.shown).copied()
    }

    /// Changes a vector register. `false` if it isn't shown.
    pub(crate) fn set_vector(&mut self, index: usize, value: [u64; 2]) -> bool {
        let slot = self.vectors.get_mut(index).filter(|_| (index as u64) < self.shown);
        slot.map(|slot| *slot = value).is_some()
    }
}

/// Every processor has them.
pub(crate) fn vectors_can_be_saved() -> bool {
    true
}

//! What listeners are shown.
//!
//! # Safety
//! The types are views of what a stub saved, and can't be made or copied by a listener.

use crate::native::{Registers, Saved};

macro_rules! view {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name(Saved);

        impl $name {
            /// The general registers.
            pub fn registers(&self) -> &Registers {
                &self.0.general
            }

            /// The same to change.
            pub fn registers_mut(&mut self) -> &mut Registers {
                &mut self.0.general
            }

            /// The low 128 bits of a vector register, lowest first. `None` if it isn't shown: without vectors, only the
            /// first eight are, among them those that pass arguments and results, and none in probes.
            pub fn vector(&self, index: usize) -> Option<[u64; 2]> {
                self.0.vector(index)
            }

            /// Changes the low 128 bits of a vector register. `false` if it isn't shown.
            pub fn set_vector(&mut self, index: usize, value: [u64; 2]) -> bool {
                self.0.set_vector(index, value)
            }
        }
    };
}

view! {
    /// A call that is about to enter its function.
    Entry
}

view! {
    /// A call that has returned.
    Exit
}

view! {
    /// A probed instruction that is about to run.
    Hit
}

impl Entry {
    /// An integer or pointer argument by its number, from 0.
    ///
    /// Arguments in memory are read from the stack.
    ///
    /// # Safety
    /// The caller of the function passed that many.
    pub unsafe fn argument(&self, index: usize) -> u64 {
        self.0.argument(index)
    }

    /// Changes an integer or pointer argument.
    ///
    /// # Safety
    /// As [`Self::argument`], and the function takes what it is changed to.
    pub unsafe fn set_argument(&mut self, index: usize, value: u64) {
        self.0.set_argument(index, value);
    }

    /// Where the call returns to. If the listener hears of returns, or others that were attached later do, this is
    /// still the caller's address for the outermost of them only; the others see where the next one is told.
    pub fn return_address(&self) -> u64 {
        self.0.return_address
    }

    /// A word of the listener's own, which the same call's [`Exit`] holds.
    pub fn set_word(&mut self, word: u64) {
        self.0.word = word;
    }
}

impl Exit {
    /// The integer or pointer result.
    pub fn result(&self) -> u64 {
        self.0.result()
    }

    /// Changes the integer or pointer result.
    pub fn set_result(&mut self, value: u64) {
        self.0.set_result(value);
    }

    /// The word that the listener set when the call entered; 0 if it didn't.
    pub fn word(&self) -> u64 {
        self.0.word
    }
}

impl Hit {
    /// Where the probe is.
    pub fn address(&self) -> u64 {
        self.0.place()
    }
}

//! What the C++ runtime's operators come to: a call of `malloc` or `free`, which is made in their place once that was seen.
//!
//! # Safety
//! Written before [`Direct::seen`] says what was seen, and before the slot's hook is live. The words and functions that are read lie in
//! objects that are loaded as long as the operator is called.

use crate::hooks::{self, Function};
use crate::native::slots::DIRECT;
use crate::operators::Operator;
use crate::tls;
use core::ffi::c_void;
use core::mem::offset_of;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// The call of libc's that an operator of the C++ runtime makes for its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nested {
    /// `malloc` of so many bytes gave this block.
    Malloc(usize, usize),
    /// `free` took this block.
    Free(usize),
}

impl Nested {
    pub(super) const MALLOC: u8 = 1;
    pub(super) const FREE: u8 = 2;

    fn function(self) -> Function {
        match self {
            Self::Malloc(..) => Function::Malloc,
            Self::Free(_) => Function::Free,
        }
    }

    /// All of it in a word, not 0.
    #[inline]
    fn word(self) -> usize {
        match self {
            Self::Malloc(block, size) => block ^ size.rotate_left(47) ^ 1,
            Self::Free(block) => !block,
        }
    }

    fn number(self) -> u8 {
        match self {
            Self::Malloc(..) => Self::MALLOC,
            Self::Free(_) => Self::FREE,
        }
    }

    /// Keeps a call that is part of another one, for the operator that it may be part of.
    #[inline]
    pub(crate) fn note(self) {
        if DIRECT {
            tls::get().nested.set(self.word());
        }
    }
}

/// What an operator of the C++ runtime calls: by which word of its object `malloc` or `free`, and by which others whom. The addresses of
/// the words, 0 for none, and of the functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Calls {
    pub(crate) libc: usize,
    pub(crate) others: [[usize; 2]; WORDS - 1],
}

/// How many words an operator of the C++ runtime may call others by.
const WORDS: usize = 3;

/// What is known of an operator's calls.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Direct {
    /// What it was seen to do: a [`Nested`] call and nothing else; 0 as long as that isn't known.
    seen: AtomicU8,
    /// Whether it calls others but by the first of its words.
    calls_others: AtomicBool,
    /// Of what it calls, libc's: what that begins with since its hook is in, and where its own code goes on.
    libc_beginning: AtomicU64,
    libc_original: AtomicUsize,
    /// The words by which it calls others, libc's first, and what is there as long as it does.
    words: [[AtomicUsize; 2]; WORDS],
    /// What the others begin with, behind the first, once their hooks are in; 0 where nobody else is called.
    others: [AtomicU64; WORDS - 1],
}

/// How much of it most calls need.
pub(super) const MOST_NEED: usize = offset_of!(Direct, words) + size_of::<[AtomicUsize; 2]>();

impl Direct {
    pub(super) const fn none() -> Self {
        Self {
            seen: AtomicU8::new(0),
            calls_others: AtomicBool::new(false),
            libc_beginning: AtomicU64::new(0),
            libc_original: AtomicUsize::new(0),
            words: [const { [const { AtomicUsize::new(0) }; 2] }; WORDS],
            others: [const { AtomicU64::new(0) }; WORDS - 1],
        }
    }

    /// Begins anew, with what is known of the calls.
    pub(super) fn begin(&self, calls: Option<Calls>) {
        self.seen.store(0, Ordering::Relaxed);
        self.others.iter().for_each(|other| other.store(0, Ordering::Relaxed));
        let [first, others @ ..] = &self.words;
        first[0].store(calls.map_or(0, |calls| calls.libc), Ordering::Relaxed);
        for (number, word) in others.iter().enumerate() {
            let [at, function] = calls.map_or([0, 0], |calls| calls.others[number]);
            word[0].store(at, Ordering::Relaxed);
            word[1].store(function, Ordering::Relaxed);
        }
        let calls_others = others.iter().flatten().any(|part| part.load(Ordering::Relaxed) != 0);
        self.calls_others.store(calls_others, Ordering::Relaxed);
    }

    /// What it was seen to do: [`Nested::MALLOC`], [`Nested::FREE`], or 0.
    #[inline(always)]
    pub(super) fn seen(&self) -> u8 {
        self.seen.load(Ordering::Acquire)
    }

    /// Where the own code of that goes on.
    #[inline(always)]
    pub(super) fn libc_original(&self) -> usize {
        self.libc_original.load(Ordering::Relaxed)
    }

    /// Calls `malloc`'s own code. The block's address, 0 for none.
    #[inline(always)]
    pub(super) fn malloc(&self, size: usize) -> usize {
        let original: *const () = ptr::with_exposed_provenance(self.libc_original());
        // SAFETY: where [`Direct::seen`] is [`Nested::MALLOC`], that is `malloc` as libc has it.
        let malloc: unsafe extern "C" fn(usize) -> *mut c_void = unsafe { core::mem::transmute(original) };
        // SAFETY: any size will do.
        unsafe { malloc(size) }.expose_provenance()
    }

    /// Whether the words by which an operator calls others lead to those, and these begin as our hooks left them.
    #[inline(always)]
    fn calls_as_seen(&self) -> bool {
        let leads = |[word, function]: &[AtomicUsize; 2]| {
            let at: *const AtomicUsize = ptr::with_exposed_provenance(word.load(Ordering::Relaxed));
            // SAFETY: null, or a word of the function's object, which is loaded as long as it is called.
            unsafe { at.as_ref() }
                .is_none_or(|word| word.load(Ordering::Relaxed) == function.load(Ordering::Relaxed))
        };
        let begins = |([_, function], beginning): (&[AtomicUsize; 2], &AtomicU64)| {
            let bytes = beginning.load(Ordering::Relaxed);
            // SAFETY: where there is a beginning there is the function.
            bytes == 0 || unsafe { hooks::first_bytes(function.load(Ordering::Relaxed)) } == bytes
        };
        let [first, others @ ..] = &self.words;
        leads(first)
            && (!self.calls_others.load(Ordering::Relaxed)
                || (others.iter().all(leads) && others.iter().zip(&self.others).all(begins)))
    }

    /// Whether an operator of the C++ runtime, which was seen to make this call for its caller and nothing else, would still do so:
    /// then the call is made in its place. It is what the runtime's operators come to where there is memory, and what there is to be
    /// seen of them by others is what they call. Where there is none the operator itself is called, whose handler is asked then. And
    /// where somebody has put a function of their own between.
    #[inline(always)]
    pub(super) fn still_holds(&self) -> bool {
        let beginning = self.libc_beginning.load(Ordering::Relaxed);
        // SAFETY: where there is a beginning there is the function.
        self.calls_as_seen()
            && beginning != 0
            && unsafe { hooks::first_bytes(self.words[0][1].load(Ordering::Relaxed)) } == beginning
    }

    /// Notes libc's function that an operator calls.
    fn note_libcs(&self, function: Function) {
        self.words[0][1].store(hooks::target(function), Ordering::Relaxed);
        self.libc_beginning.store(hooks::beginning(function), Ordering::Relaxed);
        self.libc_original.store(hooks::original(function), Ordering::Relaxed);
    }

    /// Notes what the others that an operator calls begin with, as `beginning` says it of their addresses. False if that isn't known of
    /// one.
    fn note_others(&self, beginning: impl Fn(usize) -> u64) -> bool {
        let [_, others @ ..] = &self.words;
        others.iter().zip(&self.others).all(|([_, function], to)| {
            let function = function.load(Ordering::Relaxed);
            if function == 0 {
                return true;
            }
            let bytes = beginning(function);
            to.store(bytes, Ordering::Relaxed);
            bytes != 0
        })
    }

    /// Looks whether all that an operator did that was called with `first` was a call of `malloc` or `free`. `beginning`: what a hooked
    /// function at an address begins with; 0 where that isn't known.
    #[inline(always)]
    pub(super) fn learn(
        &self,
        operator: Operator,
        first: usize,
        result: usize,
        beginning: impl Fn(usize) -> u64,
    ) {
        if DIRECT && self.seen.load(Ordering::Relaxed) == 0 {
            self.learn_of(operator, first, result, beginning);
        }
    }

    #[cold]
    #[inline(never)]
    fn learn_of(&self, operator: Operator, first: usize, result: usize, beginning: impl Fn(usize) -> u64) {
        let nested = match operator.gives_back() {
            true => Nested::Free(first),
            false => Nested::Malloc(result, first),
        };
        let calls_libc = first != 0 && tls::get().nested.get() == nested.word();
        // Another's may fail at will, and to call the operator after that would ask it again.
        let is_simple = operator.calls_only_libc() && hooks::is_libcs(nested.function());
        if calls_libc && self.words[0][0].load(Ordering::Relaxed) != 0 && is_simple {
            self.note_libcs(nested.function());
            if self.note_others(beginning) && self.still_holds() {
                self.seen.store(nested.number(), Ordering::Release);
            }
        }
    }
}

//! Hooks in memory that tests made up: where their code leads, and what is left when any call of the system fails.

use core::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{Kernel, Memory, OwnMemory};
use crate::{Attachment, Error, Hook, HookSet, Liveness, Options, Transaction, live::table_way_on};

/// Functions, each at a multiple of 32, and how long they are.
const FUNCTIONS: [&[u8]; 4] = [
    // mov eax, 1; ret
    &[0xb8, 1, 0, 0, 0, 0xc3],
    // lea rax, [rip + 0x10]; ret
    &[0x48, 0x8d, 0x05, 0x10, 0, 0, 0, 0xc3],
    // endbr64; xor eax, eax; mov ecx, 3; ret: a thread may be inside
    &[0xf3, 0x0f, 0x1e, 0xfa, 0x31, 0xc0, 0xb9, 3, 0, 0, 0, 0xc3],
    // push rbp; mov rbp, rsp; mov eax, 1; pop rbp; ret: at two places, for which no island lies near enough
    &[0x55, 0x48, 0x89, 0xe5, 0xb8, 1, 0, 0, 0, 0x5d, 0xc3],
];
const STEP: usize = 32;

/// Which of them are hooked. Miri is slow: it takes one that is rewritten and one in which a thread may be.
fn chosen() -> impl Iterator<Item = usize> {
    (0..FUNCTIONS.len()).filter(|number| !cfg!(miri) || [1, 2].contains(number))
}

/// Where the patch of a function is.
fn pad(number: usize) -> usize {
    if FUNCTIONS[number].starts_with(&[0xf3]) { 4 } else { 0 }
}

/// The functions, and behind them what takes their places: `ret`.
fn code() -> Vec<u8> {
    let mut code = vec![0xcc; 2 * FUNCTIONS.len() * STEP];
    for (number, function) in FUNCTIONS.iter().enumerate() {
        code[number * STEP..][..function.len()].copy_from_slice(function);
        code[(FUNCTIONS.len() + number) * STEP] = 0xc3;
    }
    code
}

/// The kernel is the thread's, but the tables of live patching are the process's: who finds them in use fails.
static ALONE: Mutex<()> = Mutex::new(());

/// Some code in a memory of its own.
struct World {
    at: usize,
    live: bool,
    _alone: MutexGuard<'static, ()>,
}

impl World {
    fn begin(liveness: Liveness, file: OwnMemory, fails: Option<usize>) -> Self {
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let mut memory = Memory::new();
        let at = memory.code(&code());
        assert!(memory.start() < at);
        Kernel::begin(memory);
        let fails = fails.map_or(0..0, |call| call..call + 1);
        Kernel::with(|kernel| (kernel.file, kernel.fails) = (file, fails));
        Self { at, live: liveness == Liveness::Live, _alone: alone }
    }

    fn function(&self, number: usize) -> usize {
        self.at + number * STEP
    }

    fn replacement(&self, number: usize) -> usize {
        self.function(FUNCTIONS.len() + number)
    }

    /// Not by a call, which might be the one that fails.
    fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        // SAFETY: so many bytes.
        let read = Kernel::with(|kernel| unsafe {
            kernel.memory.read(range.start, bytes.as_mut_ptr(), range.len())
        });
        assert_eq!(read, Ok(range.len()));
        bytes
    }

    fn word(&self, at: usize) -> usize {
        usize::from_le_bytes(self.bytes(at..at + 8).try_into().expect("eight"))
    }

    /// Where jumps lead from here.
    fn way(&self, mut at: usize) -> usize {
        loop {
            let code = self.bytes(at..at + 6);
            let distance =
                |from: usize| i32::from_le_bytes(code[from..from + 4].try_into().unwrap()) as isize;
            at = match code[..] {
                [0xf3, 0x0f, 0x1e, 0xfa, ..] => at + 4,
                [0xe9, ..] => (at + 5).wrapping_add_signed(distance(1)),
                [0xff, 0x25, ..] => self.word((at + 6).wrapping_add_signed(distance(2))),
                _ => return at,
            }
        }
    }

    /// What the function does is done there, and it goes on in the function.
    fn is_the_function(&self, number: usize, at: usize) {
        let pad = pad(number);
        let at = self.way(at);
        let first = FUNCTIONS[number][pad];
        assert_eq!(self.bytes(at..at + 1), [first], "function {number}");
        let code = self.bytes(at..at + 24);
        let jump = code.iter().position(|byte| *byte == 0xe9).expect("it goes on");
        let back = self.way(at + jump) - self.function(number);
        assert!((pad + 5..=pad + 10).contains(&back), "function {number} goes on at {back}");
    }

    /// Whether the function is as it was; or, if threads may be running it, does what it did by way of traps.
    fn is_as_before(&self, number: usize, old: &[u8]) -> bool {
        let at = self.function(number);
        let now = self.bytes(at..at + old.len());
        let traps = |i: usize| now[i] == 0xcc && table_way_on((at + i) as u64).is_some();
        let all_trap = || (0..old.len()).all(|i| now[i] == old[i] || traps(i));
        now == old || (self.live && (traps(pad(number)) || all_trap()))
    }

    fn end(self) -> (usize, usize) {
        let kernel = Kernel::end();
        assert_eq!(kernel.open_files(), 0);
        (kernel.calls, kernel.synchronised)
    }
}

fn options(number: usize) -> Options {
    Options { size: Some(FUNCTIONS[number].len()), ..Options::default() }
}

fn pointer(at: usize) -> *const () {
    core::ptr::with_exposed_provenance(at)
}

/// Replaces all, looks, and takes them out again. Answers how many calls were made, how often cores synchronised, and how
/// many functions were hooked.
fn replace_all(liveness: Liveness, file: OwnMemory, fails: Option<usize>) -> (usize, usize, usize) {
    let world = World::begin(liveness, file, fails);
    let before = world.bytes(world.at..world.at + code().len());
    let old = |number: usize| &before[number * STEP..][..FUNCTIONS[number].len()];
    let mut transaction = Transaction::new();
    if world.live {
        transaction = transaction.live();
    }
    for number in chosen() {
        let (function, by) = (pointer(world.function(number)), pointer(world.replacement(number)));
        transaction.replace_with(function, by, options(number));
    }
    // SAFETY: nothing runs the code.
    let mut hooks = unsafe { transaction.commit(liveness) };
    let mut hooked = 0;
    for (number, hook) in chosen().zip(&mut hooks) {
        let Ok(hook) = hook else {
            assert!(world.is_as_before(number, old(number)), "{number} failed: {hook:?}");
            continue;
        };
        hooked += 1;
        assert_eq!(world.way(world.function(number)), world.replacement(number));
        world.is_the_function(number, hook.original() as usize);
    }
    for (number, hook) in chosen().zip(&mut hooks) {
        let Ok(hook) = hook else { continue };
        // SAFETY: as above.
        let removed = unsafe { Hook::remove(hook, liveness) };
        let as_before = world.is_as_before(number, old(number));
        assert!(as_before || removed.is_err(), "{number} removed: {removed:?}");
    }
    if fails.is_none() {
        assert_eq!(world.bytes(world.at..world.at + code().len()), before);
    }
    drop(hooks);
    let (calls, synchronised) = world.end();
    (calls, synchronised, hooked)
}

/// Ways to write code, and whether some call fails. Where it can't be written through the file in which the memory is, and
/// nobody runs it, that is done by a routine of the processor's, which has no made-up kernel; Miri has another.
fn ways(fails: bool) -> impl Iterator<Item = (Liveness, OwnMemory)> {
    let files = [OwnMemory::Written, OwnMemory::ReadOnly, OwnMemory::Absent];
    let ways = [Liveness::Live, Liveness::SingleThreaded].into_iter();
    let ways = ways.flat_map(move |liveness| files.map(|file| (liveness, file)));
    let routine =
        move |(liveness, file)| liveness == Liveness::SingleThreaded && (file != OwnMemory::Written || fails);
    // Miri, which is slow, has calls fail in two of the ways.
    ways.filter(move |way| if cfg!(miri) { way.1 == OwnMemory::Absent || !fails } else { !routine(*way) })
}

/// Which call fails: each in its turn, and under Miri two of them.
fn failing(calls: usize) -> impl Iterator<Item = usize> {
    let (first, step) = if cfg!(miri) { (calls / 3, calls / 3) } else { (1, 1) };
    (first..=calls).step_by(step).take(if cfg!(miri) { 2 } else { calls })
}

/// One under Miri, and else all.
fn few<T>(of: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    of.take(if cfg!(miri) { 1 } else { usize::MAX })
}

#[test]
fn functions_are_replaced_and_have_their_bytes_back() {
    for (liveness, file) in ways(false) {
        let (_, synchronised, hooked) = replace_all(liveness, file, None);
        match liveness {
            Liveness::SingleThreaded => assert_eq!(hooked, chosen().count()),
            // Once for the process, and three times for each protocol: in together, and out one by one.
            Liveness::Live => {
                assert_eq!(hooked, chosen().filter(|number| *number != 3).count());
                assert_eq!(synchronised, 4 + 4 * hooked);
            }
        }
    }
}

#[test]
fn a_call_that_fails_leaves_each_function_as_it_was_or_hooked() {
    for (liveness, file) in ways(true) {
        let (calls, ..) = replace_all(liveness, file, None);
        for fails in failing(calls) {
            replace_all(liveness, file, Some(fails));
        }
    }
}

/// Has a removal fail at the given call of its own, and at all further ones if that is asked for, and repeats it when all is well
/// again. Answers whether it failed.
fn remove_twice(liveness: Liveness, file: OwnMemory, number: usize, call: usize, further: bool) -> bool {
    let world = World::begin(liveness, file, None);
    let before = world.bytes(world.at..world.at + code().len());
    let mut transaction = Transaction::new();
    if world.live {
        transaction = transaction.live();
    }
    let (function, by) = (pointer(world.function(number)), pointer(world.replacement(number)));
    transaction.replace_with(function, by, options(number));
    // SAFETY: nothing runs the code.
    let mut hook = unsafe { transaction.commit(liveness) }.remove(0).expect("nothing fails yet");
    Kernel::with(|kernel| {
        let first = kernel.calls + call;
        kernel.fails = first..if further { usize::MAX } else { first + 1 };
    });
    // SAFETY: as above.
    let failed = unsafe { hook.remove(liveness) }.is_err();
    Kernel::with(|kernel| kernel.fails = 0..0);
    if failed {
        let old = &before[number * STEP..][..FUNCTIONS[number].len()];
        let stays = || world.way(world.function(number)) == world.replacement(number);
        assert!(!world.live || world.is_as_before(number, old) || stays(), "call {call}");
        // SAFETY: as above.
        unsafe { hook.remove(liveness) }.expect("nothing fails any more");
    }
    assert_eq!(world.bytes(world.at..world.at + code().len()), before, "call {call}");
    drop(hook);
    world.end();
    failed
}

#[test]
fn a_removal_that_fails_half_way_can_be_repeated() {
    // Without traps inside, and with them.
    for (way, number) in
        few(ways(true)).flat_map(|way| [(way, 0), (way, 2)]).filter(|(_, n)| !cfg!(miri) || *n == 2)
    {
        for further in [false, true] {
            let fails = |call: &usize| remove_twice(way.0, way.1, number, *call, further);
            // Miri tries two.
            let calls = if cfg!(miri) { 4..6 } else { 1..100 };
            assert!(calls.filter(fails).count() > if cfg!(miri) { 0 } else { 3 });
        }
    }
}

/// Puts three replacements on each of two functions (of one under Miri), takes the middle one out, and then all.
fn attach_and_remove(liveness: Liveness, file: OwnMemory, fails: Option<usize>) -> usize {
    let functions: Vec<usize> = few([2, 0].into_iter()).collect();
    let world = World::begin(liveness, file, fails);
    let before = world.bytes(world.at..world.at + code().len());
    let mut set = HookSet::new();
    let attach = |set: &mut HookSet, by: usize| -> Vec<Result<(Attachment, usize), Error>> {
        let mut batch = set.begin();
        if world.live {
            batch = batch.live();
        }
        let wish = |&number: &usize| {
            let (function, by) = (pointer(world.function(number)), pointer(world.replacement(by)));
            batch.replace_with(function, by, options(number))
        };
        let wishes: Vec<_> = functions.iter().map(wish).collect();
        let prepared = batch.prepare();
        let originals: Vec<_> = wishes.into_iter().map(|wish| prepared.original(wish)).collect();
        // SAFETY: nothing runs the code.
        let results = unsafe { prepared.commit(liveness) };
        results.into_iter().zip(originals).map(|(id, at)| Ok((id?, at? as usize))).collect()
    };
    let attached: Vec<_> = (0..3).map(|by| attach(&mut set, by)).collect();
    for (number, function) in functions.iter().copied().enumerate() {
        let old = &before[function * STEP..][..FUNCTIONS[function].len()];
        let look = |without: usize| {
            let mut at = world.function(function);
            let links = attached.iter().enumerate().rev().filter(|(by, _)| *by != without);
            let links: Vec<_> =
                links.filter_map(|(by, all)| Some((by, all[number].as_ref().ok()?))).collect();
            if links.is_empty() {
                return assert!(world.is_as_before(function, old));
            }
            for (by, (_, original)) in links {
                assert_eq!(world.way(at), world.replacement(by), "{function} with {attached:?}");
                at = *original;
            }
            world.is_the_function(function, at);
        };
        look(usize::MAX);
        if let Ok((id, _)) = attached[1][number] {
            // SAFETY: nothing runs the code.
            let out = unsafe { set.remove(id, liveness) }.is_ok();
            look(if out { 1 } else { usize::MAX });
        }
        for (id, _) in attached.iter().filter_map(|all| all[number].as_ref().ok()) {
            // SAFETY: as above.
            let _ = unsafe { set.remove(*id, liveness) };
        }
        assert!(world.is_as_before(function, old) || fails.is_some());
    }
    drop(set);
    world.end().0
}

#[test]
fn chains_lead_to_their_function_whatever_fails() {
    // Miri has seen traps and copies of pages in the other tests, and takes long for each.
    let chosen = ways(true).filter(|way| !cfg!(miri) || way.0 == Liveness::SingleThreaded);
    for (liveness, file) in few(chosen) {
        let calls = attach_and_remove(liveness, file, None);
        for fails in few(failing(calls)) {
            attach_and_remove(liveness, file, Some(fails));
        }
    }
}

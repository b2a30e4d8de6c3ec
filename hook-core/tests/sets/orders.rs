//! The order of what is attached to one function, and its removal in any order.

use std::{
    ffi::c_void,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use grapnel_hook::{
    Arena, Attachment, CodeAddr, Error, HookSet, Listener, Liveness, Probe, Transaction,
    listen::{Entry, Exit, Hit},
};

use crate::{at, attach, code, function, poke::poke, remove, samples};

static ORIGINALS: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];

/// A replacement that notes its digit in the result.
extern "C" fn digit<const I: usize>(x: u64) -> u64 {
    function(ORIGINALS[I].load(Relaxed) as *const ())(x) * 10 + 1 + I as u64
}

const DIGITS: [extern "C" fn(u64) -> u64; 3] = [digit::<0>, digit::<1>, digit::<2>];

/// A listener that does the same.
unsafe extern "C" fn leave(call: &mut Exit, data: *mut c_void) {
    call.set_result(call.result() * 10 + data as u64);
}

pub(crate) fn run() {
    in_every_order();
    every_prologue();
    in_and_out_takes_no_memory();
    a_failed_removal_changes_nothing();
    nothing_is_attached_where_the_patch_is_gone();
    others_may_come_first();
    what_can_not_be_attached();
    listeners_and_probes_at_one_place();
    one_batch_for_all();
    written_and_then_protected();
}

/// Attaches a replacement (digits 1 to 3) or a listener (4 to 6).
fn put(set: &mut HookSet, target: *const (), digit: u64) -> Attachment {
    if digit > 3 {
        let listener = Listener::new(digit as *mut c_void).on_leave(leave);
        return attach(set, |batch| batch.listen(target, listener)).unwrap();
    }
    let index = digit as usize - 1;
    let mut batch = set.begin();
    let id = batch.replace(target, DIGITS[index] as *const ());
    let prepared = batch.prepare();
    ORIGINALS[index].store(prepared.original(id).unwrap() as usize, Relaxed);
    // SAFETY: one thread, and the types agree.
    unsafe { prepared.commit(Liveness::SingleThreaded) }.remove(0).unwrap()
}

fn expected(plain: u64, attached: &[(u64, Attachment)]) -> u64 {
    attached.iter().fold(plain, |result, (digit, _)| result * 10 + digit)
}

fn permutations(items: &[u64]) -> Vec<Vec<u64>> {
    if items.is_empty() {
        return vec![vec![]];
    }
    let mut all = Vec::new();
    for (i, item) in items.iter().enumerate() {
        let mut rest = items.to_vec();
        rest.remove(i);
        for mut tail in permutations(&rest) {
            tail.insert(0, *item);
            all.push(tail);
        }
    }
    all
}

fn in_every_order() {
    let target = at("literal");
    let before = code::bytes(target, 32);
    let mut set = HookSet::new();
    let digits = [1, 2, 4, 5];
    for (i, order) in permutations(&digits).iter().enumerate() {
        for gone in permutations(&digits).iter().skip(i % 5).step_by(5) {
            let mut attached = Vec::new();
            for &digit in order {
                attached.push((digit, put(&mut set, target, digit)));
                assert_eq!(function(target)(2), expected(42, &attached), "{order:?}");
                let outermost = set.attached(CodeAddr(target as u64)).next();
                assert_eq!(outermost, attached.last().map(|last| last.1));
            }
            for digit in gone {
                let index = attached.iter().position(|(d, _)| d == digit).unwrap();
                let (_, attachment) = attached.remove(index);
                remove(&mut set, attachment).unwrap();
                assert_eq!(function(target)(2), expected(42, &attached), "{order:?} less {gone:?}");
                assert!(matches!(remove(&mut set, attachment), Err(Error::NotAttached { .. })));
            }
            assert!(set.patch(CodeAddr(target as u64)).is_none());
            assert_eq!(code::bytes(target, 32), before);
        }
    }
}

fn every_prologue() {
    let mut set = HookSet::new();
    for sample in samples::all() {
        let Some(plain) = sample.expected else { continue };
        // It ends in another sample.
        let before = code::bytes(sample.at, 64);
        let mut attached = Vec::new();
        for digit in [4, 1, 5, 2] {
            attached.push((digit, put(&mut set, sample.at, digit)));
            assert_eq!(function(sample.at)(7), expected(plain(7), &attached), "{}", sample.name);
        }
        for at in [2, 0, 1, 0] {
            remove(&mut set, attached.remove(at).1).unwrap();
            assert_eq!(function(sample.at)(7), expected(plain(7), &attached), "{}", sample.name);
        }
        assert_eq!(code::bytes(sample.at, 64), before, "{}", sample.name);
    }
}

fn in_and_out_takes_no_memory() {
    let mut set = HookSet::new();
    let target = at("frame");
    let mut kept = 0;
    for round in 0..2000 {
        let mut attached: Vec<_> = [4, 1, 5].map(|digit| (digit, put(&mut set, target, digit))).into();
        assert_eq!(function(target)(1), 2415);
        while let Some((_, attachment)) = attached.pop() {
            remove(&mut set, attachment).unwrap();
        }
        if round == 0 {
            kept = set.kept();
        }
    }
    assert_eq!(set.kept(), kept);
    assert!(kept < 1024, "{kept}");
}

fn a_failed_removal_changes_nothing() {
    let target = at("frame");
    let before = code::bytes(target, 32);
    let mut set = HookSet::new();
    let attachment = put(&mut set, target, 1);
    let patched = code::bytes(target, 5);
    poke(target, &[0xcc]);
    assert!(matches!(remove(&mut set, attachment), Err(Error::ForeignPatch { .. })));
    assert_eq!(code::bytes(target, 1), [0xcc]);
    poke(target, &patched[..1]);
    assert_eq!(function(target)(1), 21);
    assert_eq!(set.attached(CodeAddr(target as u64)).collect::<Vec<_>>(), [attachment]);
    remove(&mut set, attachment).unwrap();
    assert_eq!(code::bytes(target, 32), before);
}

fn nothing_is_attached_where_the_patch_is_gone() {
    let target = at("frame");
    let original = code::bytes(target, 5);
    let mut set = HookSet::new();
    let attachment = put(&mut set, target, 1);
    let patched = code::bytes(target, 5);
    poke(target, &original);
    let listener = Listener::new(5 as *mut c_void).on_leave(leave);
    let error = attach(&mut set, |batch| batch.listen(target, listener)).unwrap_err();
    assert!(matches!(error, Error::NotInForce { .. }), "{error}");
    assert!(error.remedy().contains("forget"), "{}", error.remedy());
    assert_eq!(function(target)(1), 2);
    poke(target, &patched);
    let other = attach(&mut set, |batch| batch.listen(target, listener)).unwrap();
    assert_eq!(function(target)(1), 215);
    for attachment in [attachment, other] {
        remove(&mut set, attachment).unwrap();
    }
    assert_eq!(code::bytes(target, 5), original);
}

/// Somebody else's hook on top of the patch leads on to it.
fn others_may_come_first() {
    static INNER: AtomicUsize = AtomicUsize::new(0);
    extern "C" fn plus_1000(x: u64) -> u64 {
        function(INNER.load(Relaxed) as *const ())(x) + 1000
    }
    let target = at("frame");
    let original = code::bytes(target, 32);
    let mut set = HookSet::new();
    let first = put(&mut set, target, 1);
    let mut transaction = Transaction::new();
    let id = transaction.replace(target, plus_1000 as *const ());
    let prepared = transaction.prepare();
    INNER.store(prepared.original(id).unwrap() as usize, Relaxed);
    // SAFETY: one thread, and the types agree.
    let mut other = unsafe { prepared.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
    assert_eq!(function(target)(1), 1021);
    let listener = Listener::new(5 as *mut c_void).on_leave(leave);
    let second = attach(&mut set, |batch| batch.listen(target, listener)).unwrap();
    assert_eq!(function(target)(1), 1215);
    remove(&mut set, second).unwrap();
    assert_eq!(function(target)(1), 1021);
    // SAFETY: one thread.
    unsafe { other.remove(Liveness::SingleThreaded) }.unwrap();
    remove(&mut set, first).unwrap();
    assert_eq!(code::bytes(target, 32), original);
}

fn what_can_not_be_attached() {
    unsafe extern "C" fn enter(_: &mut Entry, _: *mut c_void) {}
    let mut set = HookSet::new();
    let listener = Listener::new(std::ptr::null_mut()).on_enter(enter);
    let there = |name: &&str| samples::all().iter().any(|sample| sample.name == *name);
    for name in
        ["breakpoint", "undefined", "inbound", "entered_by_another", "before_nops"].into_iter().filter(there)
    {
        for _ in 0..3 {
            let error = attach(&mut set, |batch| batch.listen(at(name), listener)).unwrap_err();
            assert!(matches!(error, Error::Relocation { .. } | Error::InboundBranch { .. }), "{error}");
        }
    }
    // Where nothing is mapped nothing gets mapped, and so the answer stays the same.
    for _ in 0..2 {
        let error = attach(&mut set, |batch| batch.listen(0x12_3456 as *const (), listener)).unwrap_err();
        assert!(matches!(error, Error::NotExecutable { .. }), "{error}");
    }
    // What was made for the first was there for the others.
    assert!(set.kept() < 64, "{}", set.kept());
    if cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let inside = (at("frame") as usize + 1) as *const ();
    attach(&mut set, |batch| batch.listen(at("frame"), listener)).unwrap();
    let error = attach(&mut set, |batch| batch.listen(inside, listener)).unwrap_err();
    assert!(matches!(error, Error::Taken { standing, .. } if standing.0 == at("frame") as u64), "{error}");
    let attached = set.attached(CodeAddr(at("frame") as u64)).next().unwrap();
    remove(&mut set, attached).unwrap();
}

/// What leads to a listener and what leads to a probe leave other things on the stack: the one comes where the other was, and what
/// was made for that is still there.
fn listeners_and_probes_at_one_place() {
    static TOLD: AtomicUsize = AtomicUsize::new(0);
    unsafe extern "C" fn enter(_: &mut Entry, _: *mut c_void) {
        TOLD.fetch_add(1, Relaxed);
    }
    unsafe extern "C" fn hit(_: &mut Hit, _: *mut c_void) {
        TOLD.fetch_add(1, Relaxed);
    }
    let listener = Listener::new(std::ptr::null_mut()).on_enter(enter);
    let probe = Probe::new(hit, std::ptr::null_mut());
    let mut set = HookSet::new();
    let mut tried = 0;
    for sample in samples::all() {
        let Some(plain) = sample.expected else { continue };
        let before = code::bytes(sample.at, 64);
        for round in 0..6 {
            let attached = attach(&mut set, |batch| match round % 2 {
                0 => batch.listen(sample.at, listener),
                _ => batch.probe(sample.at, probe),
            });
            // Some can't be probed, and what other tests have left may fill the only memory that is close enough for one.
            let Ok(attached) = attached else { continue };
            let told = TOLD.load(Relaxed);
            for x in [0, 7, 12345] {
                assert_eq!(function(sample.at)(x), plain(x), "{}, round {round}", sample.name);
            }
            assert_eq!(TOLD.load(Relaxed) - told, 3, "{}, round {round}", sample.name);
            remove(&mut set, attached).unwrap();
            assert_eq!(code::bytes(sample.at, 64), before, "{}, round {round}", sample.name);
            tried += round % 2;
        }
    }
    assert!(tried > 30, "{tried}");
    let before = set.kept();
    // SAFETY: one thread, and no call is under way.
    let reclaimed = unsafe { set.reclaim(Liveness::SingleThreaded) };
    // Words that this test's own frames still have may keep some.
    assert!(reclaimed.doubt.is_none() && set.kept() < before / 4, "{before} bytes, {reclaimed:?}");

    // Nor both at once.
    let target = at("frame");
    let mut batch = set.begin();
    batch.listen(target, listener);
    batch.probe(target, probe);
    // SAFETY: one thread, and the listeners are for this function.
    let attached = unsafe { batch.commit(Liveness::SingleThreaded) };
    assert!(matches!(attached[1], Err(Error::Taken { .. })), "{attached:?}");
    let told = TOLD.load(Relaxed);
    assert_eq!((function(target)(1), TOLD.load(Relaxed) - told), (2, 1));
    remove(&mut set, attached[0].clone().unwrap()).unwrap();
}

fn one_batch_for_all() {
    let mut set = HookSet::new();
    let names = ["frame", "early_branch", "literal", "compact"];
    let mut batch = set.begin();
    for name in names {
        batch.listen(at(name), Listener::new(4 as *mut c_void).on_leave(leave));
        batch.listen(at(name), Listener::new(5 as *mut c_void).on_leave(leave));
    }
    // SAFETY: one thread, and the listeners are for these functions.
    let attached = unsafe { batch.commit(Liveness::SingleThreaded) };
    let plain =
        names.map(|name| samples::all().into_iter().find(|s| s.name == name).unwrap().expected.unwrap()(3));
    for (name, plain) in names.iter().zip(plain) {
        assert_eq!(function(at(name))(3), plain * 100 + 45, "{name}");
    }
    // In and out together: the first of each goes, and one more comes.
    let mut batch = set.begin();
    for pair in attached.chunks(2) {
        batch.remove(pair[0].clone().unwrap());
    }
    batch.listen(at("frame"), Listener::new(6 as *mut c_void).on_leave(leave));
    // A batch that is dropped changes nothing.
    drop(batch.prepare());
    assert_eq!(function(at("frame"))(3), 445);
    let mut batch = set.begin();
    for pair in attached.chunks(2) {
        batch.remove(pair[0].clone().unwrap());
    }
    let id = batch.listen(at("frame"), Listener::new(6 as *mut c_void).on_leave(leave));
    // SAFETY: as above.
    let mut changed = unsafe { batch.commit(Liveness::SingleThreaded) };
    assert_eq!(function(at("frame"))(3), 456);
    assert_eq!(function(at("compact"))(3), 45);
    let mut batch = set.begin();
    batch.remove(changed.remove(id.index()).unwrap());
    for pair in attached.chunks(2) {
        batch.remove(pair[1].clone().unwrap());
    }
    // SAFETY: one thread.
    for result in unsafe { batch.commit(Liveness::SingleThreaded) } {
        result.unwrap();
    }
    for (name, plain) in names.iter().zip(plain) {
        assert_eq!(function(at(name))(3), plain);
    }
}

fn written_and_then_protected() {
    let mut set = HookSet::with_arena(Arena::with_protection_only());
    let target = at("call");
    let first = put(&mut set, target, 1);
    let second = put(&mut set, target, 4);
    assert_eq!(function(target)(1), 1214);
    assert_eq!(code::writable_code(), Vec::<String>::new());
    remove(&mut set, first).unwrap();
    remove(&mut set, second).unwrap();
    assert_eq!(function(target)(1), 12);
}

//! Two owners of hooks, each in a thread of its own, that want one function at the same time.

use std::sync::{
    Barrier,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use grapnel_hook::{Arena, Liveness, Transaction};

use crate::{at, function, samples};

extern "C" fn other<const N: u64>(_: u64) -> u64 {
    N
}

/// The second has many more functions, so that it is not done when the first begins.
pub(crate) fn run() {
    const NAME: &str = "frame";
    let original = function(at(NAME))(5);
    let (start, over) = (Barrier::new(2), Barrier::new(2));
    let done = AtomicUsize::new(0);
    let work = |owner: u64| {
        let mut arena = Arena::default();
        for round in 0..100 {
            let mut wanted = Transaction::with_arena(&mut arena).live();
            let by = if owner == 0 { other::<100> as *const () } else { other::<200> as *const () };
            wanted.replace(at(NAME), by);
            for more in samples::all().iter().filter(|more| owner == 1 && more.name != NAME) {
                wanted.replace(more.at, by);
            }
            let prepared = wanted.prepare();
            start.wait();
            if owner == 0 {
                std::thread::sleep(std::time::Duration::from_micros(round % 20 * 20));
            }
            // SAFETY: none but these threads call the functions, and the types agree.
            let mut hooks = unsafe { prepared.commit(Liveness::Live) };
            done.fetch_add(usize::from(hooks[0].is_ok()), Relaxed);
            over.wait();
            if owner == 0 {
                assert!(
                    done.swap(0, Relaxed) <= 1,
                    "round {round}: both were told that the function is theirs"
                );
            }
            over.wait();
            for turn in 0..2 {
                if turn == owner {
                    for hook in hooks.iter_mut().flatten() {
                        // SAFETY: as above.
                        unsafe { hook.remove(Liveness::Live) }.expect("it is as it was left");
                    }
                }
                over.wait();
            }
            assert_eq!(function(at(NAME))(5), original, "round {round}");
            over.wait();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| work(0));
        scope.spawn(|| work(1));
    });
}

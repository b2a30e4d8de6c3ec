//! Several threads load and unload libraries, while others change what waits.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::*},
    time::{Duration, Instant},
};

use grapnel_hook::{
    Liveness,
    waiting::{Status, Waiting},
};

use crate::{
    library::{Library, build},
    replace,
};

extern "C" fn minus_5(_: i32) -> i32 {
    -5
}

/// How long all run.
const TIME: Duration = Duration::from_secs(4);

/// A child in which hooks are taken, while other threads of the parent's change them and load objects.
fn fork(waiting: Waiting) -> libc::pid_t {
    let generation = waiting.lock().unwrap().generation();
    // SAFETY: the child calls nothing that a thread of the parent's may have left locked but the allocator, which libc
    // sees to, and ends without running any destructor.
    unsafe {
        let child = libc::fork();
        assert!(child >= 0);
        if child == 0 {
            libc::alarm(20);
            let result = waiting.lock().map_or(2, |hooks| i32::from(hooks.generation() != generation));
            libc::_exit(result);
        }
        child
    }
}

fn result(child: libc::pid_t) -> i32 {
    let mut status = 0;
    // SAFETY: a child of this process, and a word for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

pub(crate) fn several(waiting: Waiting) {
    let libraries = [1, 2, 3].map(|number| (number, build(&format!("thread{number}"), number, &[])));
    let live = Liveness::Live;
    let over = AtomicBool::new(false);
    let (loads, changes, hooked) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    // In for good: each load must find it in.
    let mut hooks = waiting.lock().unwrap();
    let fixed = libraries.clone().map(|(number, _)| {
        replace(&mut hooks, &format!("libthread{number}.so.1"), "inside", minus_5, None, live).unwrap()
    });
    drop(hooks);
    let mut children = Vec::new();
    std::thread::scope(|scope| {
        for (number, path) in &libraries {
            let (over, loads, hooked) = (&over, &loads, &hooked);
            scope.spawn(move || {
                while !over.load(Relaxed) {
                    let library = Library::load(path);
                    assert_eq!(library.constructor_saw()[1], -5);
                    assert_eq!(library.call(c"call_inside", 1), -5);
                    let found = library.call(c"number", 1);
                    let right = 1 + number;
                    assert!(found == right || found == -5, "{found}");
                    hooked.fetch_add(usize::from(found == -5), Relaxed);
                    library.unload();
                    loads.fetch_add(1, Relaxed);
                }
            });
        }
        for number in [1, 2] {
            let (over, changes) = (&over, &changes);
            scope.spawn(move || {
                let object = format!("libthread{number}.so.1");
                while !over.load(Relaxed) {
                    // Now and then the library is loaded, now and then not.
                    let mut hooks = waiting.lock().unwrap();
                    let id = replace(&mut hooks, &object, "number", minus_5, None, live).unwrap();
                    drop(hooks);
                    std::thread::sleep(Duration::from_micros(300));
                    let mut hooks = waiting.lock().unwrap();
                    assert!(!matches!(hooks.status(id), Ok(Status::Failed(_))), "{:?}", hooks.status(id));
                    // SAFETY: it is so prepared.
                    unsafe { hooks.remove(id, live) }.unwrap();
                    changes.fetch_add(1, Relaxed);
                }
            });
        }
        let start = Instant::now();
        // On a busy machine and under an emulator little may happen in that time.
        let few = || [&loads, &changes, &hooked].iter().any(|count| count.load(Relaxed) <= 10);
        while start.elapsed() < TIME || few() && start.elapsed() < 20 * TIME {
            std::thread::sleep(Duration::from_millis(10));
            children.push(fork(waiting));
        }
        over.store(true, Relaxed);
    });
    let counts = [&loads, &changes, &hooked].map(|count| count.load(Relaxed));
    println!("  {} loads, {} changes, {} calls hooked", counts[0], counts[1], counts[2]);
    assert!(counts.iter().all(|&count| count > 10), "{counts:?}");
    assert_eq!(waiting.missed(), 0);
    // Whether the hooks were held in the moment of the fork, is chance.
    let mut results = [0; 3];
    for child in children {
        results[result(child) as usize] += 1;
    }
    println!("  children: {} had the hooks, {} began anew", results[0], results[1]);
    assert!(results[0] > 10 && results[2] == 0, "{results:?}");
    let mut hooks = waiting.lock().unwrap();
    for id in fixed {
        assert!(matches!(hooks.status(id), Ok(Status::Unloaded { .. })));
        // SAFETY: it is so prepared.
        unsafe { hooks.remove(id, live) }.unwrap();
    }
}

//! The table of the trap handler.

use core::ptr;

use loom::{sync::Arc, thread};

use crate::{
    atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::*},
    model,
};

#[path = "../../src/live/table.rs"]
#[expect(dead_code, reason = "it is written as a part of the crate")]
mod table;

loom::lazy_static! {
    static ref TABLE: AtomicPtr<table::Table> = AtomicPtr::new(ptr::null_mut());
    static ref TAKEN: AtomicUsize = AtomicUsize::new(0);
}
const SMALLEST: usize = 2;

const SITE: u64 = 0x1000;
const PLAIN: u64 = 0;
const TRAP: u64 = 1;

/// The first byte of a patched place.
struct Code(AtomicU64);

impl Code {
    fn plain() -> Arc<Self> {
        Arc::new(Self(AtomicU64::new(PLAIN)))
    }

    fn is_trap(&self) -> bool {
        self.0.load(SeqCst) == TRAP
    }

    fn way_on(&self) -> Option<u64> {
        table::way_on(SITE, || self.is_trap())
    }
}

/// A thread has met the trap of a patch that goes and comes back before it looks.
fn comes_back(grows: bool) {
    model(move || {
        let code = Code::plain();
        table::enter(SITE, table::ways(&[1]));
        code.0.store(TRAP, SeqCst);
        let late = thread::spawn({
            let code = code.clone();
            move || {
                let way = code.way_on();
                assert!(matches!(way, Some(1 | 2)), "however late: {way:?}");
            }
        });
        code.0.store(PLAIN, SeqCst);
        table::leave(SITE, true);
        if grows {
            table::enter(SITE + 0x100, table::ways(&[9]));
        }
        table::enter(SITE, table::ways(&[2]));
        code.0.store(TRAP, SeqCst);
        late.join().unwrap();
        assert_eq!(code.way_on(), Some(2));
    });
}

#[test]
fn who_has_met_a_trap_of_ours_is_sent_on() {
    comes_back(false);
}

#[test]
fn who_has_met_a_trap_of_ours_is_sent_on_by_a_table_that_grows() {
    comes_back(true);
}

#[test]
fn who_has_met_another_s_trap_is_not() {
    model(|| {
        let code = Code::plain();
        table::enter(SITE, table::ways(&[1]));
        table::leave(SITE, true);
        code.0.store(TRAP, SeqCst);
        let other = thread::spawn({
            let code = code.clone();
            move || assert_eq!(code.way_on(), None)
        });
        table::enter(SITE + 0x100, table::ways(&[9]));
        other.join().unwrap();
    });
}

#[test]
fn growing_loses_nothing() {
    model(|| {
        table::enter(SITE, table::ways(&[1, 2]));
        let looker = thread::spawn(|| {
            assert_eq!([0, 1, 2].map(|at| table::way_on(SITE + at, || true)), [Some(1), Some(2), None]);
        });
        for other in 1..3 {
            table::enter(SITE + 0x100 * other, table::ways(&[9]));
        }
        looker.join().unwrap();
        assert_eq!(table::way_on(SITE + 0x200, || true), Some(9));
    });
}

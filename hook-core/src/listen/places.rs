//! The return points of the process, what is known of them, and its threads in guarded listeners. They are apart from what is
//! done with them, of which there is a model with other atomics.

use core::{
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize},
};

use super::{
    guard::{Bucket, Entry},
    returns::{Kind, Point},
};
use crate::native::{POINT_PARTS, RETURN_POINTS};

pub(super) static POINTS: [Point; RETURN_POINTS] = [const {
    Point { state: AtomicUsize::new(0), link: AtomicPtr::new(ptr::null_mut()), word: AtomicU64::new(0) }
}; RETURN_POINTS];

/// By the part that they are in, and whether they are for the outermost listener of a call.
pub(super) static KINDS: [[Kind; 2]; POINT_PARTS] = [const {
    [const { Kind { patience: AtomicUsize::new(0), last: AtomicUsize::new(0), returned: AtomicUsize::new(0) } };
        2]
}; POINT_PARTS];

/// Points of some kind were scarce once, so returns have something to say.
pub(super) static SCARCE: AtomicBool = AtomicBool::new(false);

/// The number of the next look at a point.
pub(super) static LOOKS: AtomicUsize = AtomicUsize::new(1);

/// How many threads a bucket has room for.
pub(super) const BUCKET: usize = 8;

/// The threads that are in guarded listeners.
pub(super) static THREADS: [Bucket; 128] =
    [const { Bucket([const { Entry { thread: AtomicUsize::new(0), word: AtomicUsize::new(0) } }; BUCKET]) };
        128];

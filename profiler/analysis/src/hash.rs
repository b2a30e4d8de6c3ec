//! A map keyed by addresses and other numbers, with a hash that costs one multiplication.

use core::hash::{BuildHasherDefault, Hasher};
use std::collections::HashMap;

/// A map whose keys are addresses or small numbers.
///
/// A hostile trace may choose keys that collide and make its own analysis slow; it gains nothing else.
pub(crate) type AddressMap<V> = HashMap<u64, V, FoldHash>;

/// For maps whose keys are made of numbers.
pub(crate) type FoldHash = BuildHasherDefault<FoldHasher>;

/// Folds the 128-bit product with an odd constant: both halves of the key reach both the high bits, which
/// the map compares first, and the low bits, which choose the bucket.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FoldHasher(u64);

impl Hasher for FoldHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_u64(u64::from(byte)));
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.write_u64(u64::from(n));
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.write_u64(u64::from(n));
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        let product = u128::from(n ^ self.0.rotate_left(29)) * 0x9e37_79b9_7f4a_7c15;
        self.0 = (product as u64) ^ (product >> 64) as u64;
    }
}

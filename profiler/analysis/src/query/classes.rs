//! Numbers for sizes and lifetimes that are told together, and their names.

use crate::report::words::grouped;

const NS_PER_MS: u64 = 1_000_000;

/// Blocks that are live at the end.
pub(super) const NEVER: u32 = u32::MAX;
/// Groups beyond those that are kept.
pub(super) const OTHERS: u32 = u32::MAX - 1;

/// 0 for blocks of no bytes, else one more than the power of two that the size doesn't exceed.
pub(super) fn of_size(size: u64) -> u32 {
    match size {
        0 => 0,
        size => 1 + (u64::BITS - (size - 1).leading_zeros()),
    }
}

pub(super) fn size_name(class: u32) -> String {
    match class {
        0 => "0".to_owned(),
        1 => "1".to_owned(),
        2 => "2".to_owned(),
        class => {
            let most = 1_u128 << (class - 1).min(64);
            let most = u64::try_from(most).unwrap_or(u64::MAX);
            format!("{} to {}", grouped(most / 2 + 1), grouped(most))
        }
    }
}

/// 0 for less than a millisecond, else one more than the power of ten of milliseconds that it is at least.
pub(super) fn of_lifetime(ns: u64) -> u32 {
    match ns / NS_PER_MS {
        0 => 0,
        ms => 1 + ms.ilog10(),
    }
}

pub(super) fn lifetime_name(class: u32) -> String {
    let at = |power: u32| match power {
        0..=2 => format!("{} ms", 10_u64.pow(power)),
        _ => format!("{} s", 10_u64.saturating_pow(power - 3)),
    };
    match class {
        NEVER => "live at the end".to_owned(),
        0 => "below 1 ms".to_owned(),
        class => format!("{} to {}", at(class - 1), at(class)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_and_lifetime_has_one_name() {
        let name = |size| size_name(of_size(size));
        assert_eq!([0, 1, 2, 3, 4, 5].map(name), ["0", "1", "2", "3 to 4", "3 to 4", "5 to 8"]);
        assert_eq!((name(1024), name(1025)), ("513 to 1,024".into(), "1,025 to 2,048".into()));
        assert!(name(u64::MAX).ends_with("18,446,744,073,709,551,615"));
        let name = |ms: u64| lifetime_name(of_lifetime(ms * NS_PER_MS));
        assert_eq!(lifetime_name(of_lifetime(999_999)), "below 1 ms");
        assert_eq!(
            [1, 9, 10, 999, 1000].map(name),
            ["1 ms to 10 ms", "1 ms to 10 ms", "10 ms to 100 ms", "100 ms to 1 s", "1 s to 10 s"]
        );
    }
}

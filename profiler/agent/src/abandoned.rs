//! What threads leave behind: a thread has no destructor of ours, so what was one's is found again when another needs such a
//! thing.

/// How many things a thread in need looks at for one whose owner is gone.
const SEARCH: usize = 32;

/// Finds one that is the caller's own already, or one of the first whose owner is gone. The next search begins with others.
pub(crate) fn find<T: Copy>(
    all: &mut [T],
    is_own: impl Fn(T) -> bool,
    is_gone: impl Fn(T) -> bool,
) -> Option<T> {
    let own = all.iter().position(|&one| is_own(one));
    match own.or_else(|| all.iter().take(SEARCH).position(|&one| is_gone(one))) {
        Some(at) => {
            let found = all[at];
            all[at..].rotate_left(1);
            Some(found)
        }
        None => {
            all.rotate_left(if all.len() > SEARCH { SEARCH } else { 0 });
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_search_looks_at_others_and_what_is_found_comes_last() {
        let mut all: [u32; 100] = core::array::from_fn(|number| number as u32);
        let none = |_| false;
        assert_eq!(find(&mut all, |one| one == 99, none), Some(99));
        // 40 lies behind those that a search looks at.
        assert_eq!(find(&mut all, none, |one| one == 40), None);
        assert_eq!(find(&mut all, none, |one| one == 40), Some(40));
        assert_eq!((all[0], all[99]), (32, 40));
        let mut few = [1, 2, 3];
        assert_eq!((find(&mut few, none, none), few), (None, [1, 2, 3]));
    }
}

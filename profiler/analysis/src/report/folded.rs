//! A stack with its recursion told once: frames that follow each other again and again.

use crate::stacks::Node;

/// The most frames that a function calls itself through.
const LONGEST_CYCLE: usize = 8;
/// Frames that come so often, one after the other, are told once.
const FEWEST: usize = 3;

/// A line of a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// The frame with this number.
    Frame(usize),
    /// The `frames` before come again, so often.
    Again { frames: usize, times: usize },
}

impl Line {
    /// How many frames it stands for.
    pub(super) fn frames(self) -> usize {
        match self {
            Self::Frame(_) => 1,
            Self::Again { frames, times } => frames * times,
        }
    }
}

/// The lines of a stack of these frames.
pub(super) fn folded(nodes: &[Node]) -> Vec<Line> {
    let mut lines = Vec::new();
    let mut at = 0;
    while at < nodes.len() {
        let rest = &nodes[at..];
        let cycles = (1..=LONGEST_CYCLE).map(|frames| (frames, times(rest, frames)));
        // Of two that come equally far, the shorter says more.
        let best = cycles
            .filter(|(_, times)| *times >= FEWEST)
            .max_by_key(|(frames, times)| (frames * times, core::cmp::Reverse(*frames)));
        let (frames, times) = best.unwrap_or((1, 1));
        lines.extend((at..at + frames).map(Line::Frame));
        if times > 1 {
            lines.push(Line::Again { frames, times: times - 1 });
        }
        at += frames * times;
    }
    lines
}

/// How often the first so many frames come, one after the other.
fn times(nodes: &[Node], frames: usize) -> usize {
    let Some((first, rest)) = nodes.split_at_checked(frames) else { return 0 };
    1 + rest.chunks_exact(frames).take_while(|other| are_same(first, other)).count()
}

fn are_same(some: &[Node], others: &[Node]) -> bool {
    let same = |(one, other): (&Node, &Node)| {
        (one.module, one.pc, one.flags) == (other.module, other.pc, other.flags)
    };
    some.iter().zip(others).all(same)
}

/// The lines to show at the leaf's end where so many are asked for, 0 for all, how many frames are left out behind them, and the
/// lines to show at the root's end.
pub(super) fn shown(lines: &[Line], limit: usize) -> (&[Line], usize, &[Line]) {
    let (head, tail) = kept(lines.len(), limit);
    let (first, rest) = lines.split_at(head);
    let (mut hidden, mut last) = rest.split_at(rest.len() - tail);
    // What comes again is told with what it was.
    while !hidden.is_empty() && matches!(last, [Line::Again { .. }, ..]) {
        (hidden, last) = rest.split_at(hidden.len() + 1);
    }
    (first, hidden.iter().map(|line| line.frames()).sum(), last)
}

/// How many lines to keep at the leaf's and at the root's end. What is left out is at least two: one
/// would take no less room than its replacement.
fn kept(len: usize, limit: usize) -> (usize, usize) {
    if limit == 0 || len <= limit + 1 {
        return (len, 0);
    }
    let tail = limit / 4;
    (limit - tail, tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(pcs: &[u64]) -> Vec<Node> {
        pcs.iter()
            .zip((0..pcs.len() as u32).rev())
            .map(|(&pc, parent)| Node { parent, module: 1, pc, flags: 0 })
            .collect()
    }

    #[test]
    fn recursion_is_told_once() {
        use Line::{Again, Frame};
        let again = |frames, times| Again { frames, times };
        assert_eq!(folded(&stack(&[])), []);
        assert_eq!(folded(&stack(&[1, 2, 2, 3])), [0, 1, 2, 3].map(Frame));
        assert_eq!(folded(&stack(&[1, 2, 2, 2, 3])), [Frame(0), Frame(1), again(1, 2), Frame(4)]);
        assert_eq!(
            folded(&stack(&[9, 1, 2, 1, 2, 1, 2, 1, 7])),
            [Frame(0), Frame(1), Frame(2), again(2, 2), Frame(7), Frame(8)]
        );
        // Six times one frame, not three times two.
        assert_eq!(folded(&stack(&[5; 6])), [Frame(0), again(1, 5)]);
        // A function that calls itself at two places.
        let two = [1, 1, 2, 1, 1, 2, 1, 1, 2, 4];
        assert_eq!(folded(&stack(&two)), [Frame(0), Frame(1), Frame(2), again(3, 2), Frame(9)]);
    }

    #[test]
    fn no_frame_is_left_out() {
        let mut state = 1u64;
        for round in 0..2000 {
            let pcs: Vec<u64> = (0..round % 60)
                .map(|_| {
                    state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                    (state >> 62) & 1
                })
                .collect();
            let nodes = stack(&pcs);
            let mut told: Vec<u64> = Vec::new();
            for line in folded(&nodes) {
                let before = told.len();
                match line {
                    Line::Frame(at) => told.push(pcs[at]),
                    Line::Again { frames, times } => {
                        let again = told[told.len() - frames..].repeat(times);
                        told.extend(again);
                    }
                }
                assert_eq!(told.len() - before, line.frames());
            }
            assert_eq!(told, pcs);
        }
    }

    #[test]
    fn other_flags_are_another_frame() {
        let mut nodes = stack(&[1; 5]);
        nodes[2].flags = 1;
        assert_eq!(folded(&nodes), [0, 1, 2, 3, 4].map(Line::Frame));
    }

    #[test]
    fn what_comes_again_stands_behind_what_it_was() {
        let again = Line::Again { frames: 1, times: 5 };
        let lines: Vec<Line> =
            (0..12).map(Line::Frame).chain([again]).chain((18..20).map(Line::Frame)).collect();
        assert_eq!(shown(&lines, 0), (&lines[..], 0, &[][..]));
        // It is the first of the last three lines, or among them behind what it was.
        assert_eq!(shown(&lines, 12), (&lines[..9], 8, &lines[13..]));
        assert_eq!(shown(&lines[..14], 12), (&lines[..9], 2, &lines[11..14]));
    }

    #[test]
    fn the_middle_is_left_out_only_where_that_saves_a_line() {
        assert_eq!(kept(16, 16), (16, 0));
        assert_eq!(kept(17, 16), (17, 0));
        assert_eq!(kept(18, 16), (12, 4));
        assert_eq!(kept(500, 0), (500, 0));
        assert_eq!(kept(3, 1), (1, 0));
    }
}

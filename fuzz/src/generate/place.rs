//! Where a window of one of Arm's instruction sets lies, where it goes to, and what is known around it.

use arbitrary::{Result, Unstructured};
use grapnel_relocator::{CodeAddr, MAX_EMITTED, WindowOptions};

/// The length asked for: that of a redirect, or any.
pub(super) fn min_len(entropy: &mut Unstructured<'_>) -> Result<usize> {
    Ok(match entropy.int_in_range(0..=11)? {
        0 => 2,
        1..=4 => 4,
        5 => 8,
        6 => 10,
        7 => 12,
        8..=9 => 16,
        _ => entropy.int_in_range(1..=32)?,
    })
}

/// What is known of the function, whose code and its padding are `code_len` bytes, in steps of `step`.
pub(super) fn options(entropy: &mut Unstructured<'_>, code_len: usize, step: usize) -> Result<WindowOptions> {
    let extent = match entropy.int_in_range(0..=7)? {
        0 | 1 => Some(code_len),
        2 => Some(entropy.int_in_range(1..=code_len / step)? * step),
        _ => None,
    };
    let (allow_padding, entry) = (entropy.arbitrary()?, entropy.arbitrary()?);
    Ok(WindowOptions { extent, allow_padding, entry, shadow_stack: entropy.ratio(1u8, 4)? })
}

/// A destination for 32-bit code at `from`, at a multiple of 4.
pub(super) fn to32(entropy: &mut Unstructured<'_>, from: CodeAddr) -> Result<CodeAddr> {
    let any = |entropy: &mut Unstructured<'_>| Ok(u64::from(entropy.arbitrary::<u32>()?));
    // Which distances branches and literals bridge: B.N, LDR, Bcc.W, B.W, B.
    const ENDS: [i64; 5] = [2 << 10, 4 << 10, 1 << 20, 16 << 20, 32 << 20];
    let to = match entropy.int_in_range(0..=9)? {
        0..=2 => from.0.wrapping_add_signed(around_end(entropy, &ENDS)?),
        3..=4 => any(entropy)?,
        5 => from.0.wrapping_add_signed(entropy.int_in_range(-256..=256)?),
        _ => from.0.wrapping_add_signed(entropy.int_in_range(-0x10_0000..=0x10_0000)?),
    };
    // Code that would wrap at 4 GiB has no place at all.
    Ok(CodeAddr((to & 0xffff_fffc).clamp(0x1000, 0xffff_f000)))
}

/// A destination that doesn't lie in what follows the window; at times it lies in the window itself, which is refused.
pub(super) const fn apart(from: CodeAddr, len: usize, to: CodeAddr) -> CodeAddr {
    let distance = to.displacement_from(from);
    if distance > 0 && distance < len as i64 {
        to.offset((len as i64 + 3) & !3)
    } else if distance < 0 && distance > -(MAX_EMITTED as i64) {
        to.offset(-(MAX_EMITTED as i64))
    } else {
        to
    }
}

/// Some bytes before or behind one of the distances, in either direction.
pub(super) fn around_end(entropy: &mut Unstructured<'_>, ends: &[i64]) -> Result<i64> {
    let end = *entropy.choose(ends)?;
    let off = entropy.int_in_range(-0x40..=0x40)? * 4;
    Ok(if entropy.arbitrary()? { end + off } else { -end + off })
}

/// The displacement of a branch or literal at `at`, in bytes, a multiple of `step`, for a field that holds `bits` bits of
/// such steps, signed.
///
/// Mostly it leads to one of `starts`, the offsets of the case's instructions, the first ones preferred; otherwise just
/// behind, to an end of the range, or anywhere.
pub(super) fn displacement(
    entropy: &mut Unstructured<'_>,
    at: i64,
    starts: &[usize],
    step: i64,
    bits: u32,
) -> Result<i64> {
    let (lo, hi) = (-(step << (bits - 1)), (step << (bits - 1)) - step);
    let displacement = match entropy.int_in_range(0..=15)? {
        0..=4 => {
            let nearest = starts.len().min(8);
            *entropy.choose(&starts[..nearest])? as i64 - at
        }
        5 => *entropy.choose(starts)? as i64 - at,
        6 => step * entropy.int_in_range(-3..=3)?,
        7 => lo + step * entropy.int_in_range(0..=2)?,
        8 => hi - step * entropy.int_in_range(0..=2)?,
        9..=12 => entropy.int_in_range((lo / step).max(-0x200)..=(hi / step).min(0x200))? * step,
        _ => entropy.int_in_range(lo / step..=hi / step)? * step,
    };
    Ok(displacement.clamp(lo, hi).div_euclid(step) * step)
}

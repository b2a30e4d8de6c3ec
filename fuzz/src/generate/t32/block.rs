//! IT blocks.

use arbitrary::{Result, Unstructured};

use super::insts::{self, Inst};

/// An IT instruction of any shape and its members, sometimes fewer or other ones than the manual allows.
pub(super) fn block(entropy: &mut Unstructured<'_>, insts: &mut Vec<Inst>) -> Result<()> {
    let members = entropy.int_in_range(1..=4u32)?;
    let condition = match entropy.int_in_range(0..=31)? {
        0 => 15,
        1..=2 => 14,
        _ => entropy.int_in_range(0..=13)?,
    };
    // The mask's lowest set bit ends it. Above it, a bit like the condition's lowest is Then, the other Else, and AL has
    // no Else (DDI 0487, F5.1.58).
    let end = 1 << (4 - members);
    let above = !(end | (end - 1)) & 0xf;
    let then = if condition & 1 == 1 { above } else { 0 };
    let choice = if condition == 14 { 0 } else { entropy.arbitrary::<u32>()? };
    insts.push(Inst::plain(0xbf00 | condition << 4 | ((then ^ choice) & above) | end));
    for number in 1..=members {
        let last = number == members || entropy.ratio(1u8, 32)?;
        insts.push(member(entropy, last)?);
    }
    Ok(())
}

fn member(entropy: &mut Unstructured<'_>, last: bool) -> Result<Inst> {
    match entropy.int_in_range(0..=11)? {
        0..=4 => Ok(Inst::plain(insts::alu(entropy)?)),
        5..=6 => insts::relative(entropy),
        7..=9 if last => insts::leaving(entropy),
        10 if last => insts::branch(entropy),
        _ => insts::plain(entropy),
    }
}

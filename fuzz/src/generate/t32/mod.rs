//! Random T32 windows (DDI 0487, F3.1; DDI 0406, A6).

mod block;
mod field;
mod insts;

use arbitrary::{Result, Unstructured};
use grapnel_relocator::{CodeAddr, Isa};

use self::insts::Inst;
use super::place;
use crate::case::Case;

const NOP: u32 = 0xbf00;
const BX_LR: u32 = 0x4770;

pub(super) fn case(entropy: &mut Unstructured<'_>) -> Result<Case> {
    let mut insts = Vec::new();
    for _ in 0..entropy.int_in_range(1..=7)? {
        match entropy.int_in_range(0..=7)? {
            0..=1 => block::block(entropy, &mut insts)?,
            _ => insts.push(insts::inst(entropy)?),
        }
    }
    behind(entropy, &mut insts)?;
    let from = entropy.arbitrary::<u32>()?.clamp(0x1_0000, 0xffff_0000) & !1;
    let mut starts = Vec::with_capacity(insts.len());
    let mut len = 0;
    for inst in &insts {
        starts.push(len);
        len += inst.len();
    }
    let mut source = Vec::with_capacity(len);
    for (inst, &at) in insts.iter().zip(&starts) {
        let bits = match inst.field {
            Some(field) => inst.bits | field.filled(entropy, from, at, &starts)?,
            None => inst.bits,
        };
        if inst.len() == 4 {
            source.extend(((bits >> 16) as u16).to_le_bytes());
        }
        source.extend((bits as u16).to_le_bytes());
    }
    let from = CodeAddr(u64::from(from));
    // The destination is mostly where an arena puts code.
    let to = place::to32(entropy, from)?.add(2 * u64::from(entropy.ratio(1u8, 16)?));
    let to = place::apart(from, source.len(), to);
    let min_len = place::min_len(entropy)?;
    let options = place::options(entropy, source.len(), 2)?;
    Ok(Case { about: Vec::new(), isa: Isa::T32, from, to, min_len, options, source })
}

/// What follows the window: registers overwritten or read before they are, a call, a return, branches, a literal pool.
fn behind(entropy: &mut Unstructured<'_>, insts: &mut Vec<Inst>) -> Result<()> {
    for _ in 0..entropy.int_in_range(0..=4)? {
        insts.push(match entropy.int_in_range(0..=7)? {
            // movs rN, #imm
            0..=1 => Inst::plain(0x2000 | entropy.int_in_range(0..=0x7ff)?),
            // movw rN, #imm
            2 => Inst::plain(0xf240_0000 | entropy.int_in_range(0..=14)? << 8),
            // mov r0, rN
            3 => Inst::plain(0x4600 | entropy.int_in_range(0..=14)? << 3),
            // cmp r0, #imm: the flags are dead before it
            4 => Inst::plain(0x2800 | entropy.int_in_range(0..=0xff)?),
            5 => insts::branch(entropy)?,
            _ => insts::plain(entropy)?,
        });
    }
    insts.push(Inst::plain(BX_LR));
    for _ in 0..entropy.int_in_range(0..=3)? {
        insts.push(Inst::plain(u32::from(entropy.arbitrary::<u16>()?)));
    }
    // As many as the longest window may need.
    insts.extend([Inst::plain(NOP); 16]);
    Ok(())
}

//! The instructions of an FDE, followed up to an address, as far as a rule asks for what they say.
//!
//! Rows begin and end as gimli has them: the first row that holds the address is the one, also behind the end of its FDE.
//! Instructions that gimli refuses are given up on, since by an error code has no CFI.

use super::bytes::Bytes;
use super::entry::Entry;
use crate::cfi::facts::{Cfa, Facts, FrameRegisters, Said};
use gimli::constants as dw;
use gimli::{AArch64, Register};

/// So many registers gimli has room for, whichever they are.
const REGISTERS: u16 = 128;
/// The state at the start.
const BLANK: Facts =
    Facts { cfa: Cfa::Plus(Register(0), 0), fp: Said::Nothing, return_address: Said::Nothing };

/// The facts that hold at an address.
#[inline]
pub(super) fn facts_at(entry: &Entry<'_>, names: FrameRegisters, address: u64) -> Option<Facts> {
    let own = entry.return_address;
    let others = [names.sp, names.fp, AArch64::RA_SIGN_STATE];
    if own.0 >= REGISTERS || others.contains(&own) || address < entry.start {
        return None;
    }
    let mut machine = Machine { row: BLANK, initial: None, remembered: None, start: entry.start };
    machine.follow(entry, names, address)?;
    Some(machine.row)
}

#[derive(Debug)]
struct Machine {
    row: Facts,
    /// What the CIE says, once all of it was followed.
    initial: Option<Facts>,
    /// One state may be remembered at a time. gimli has room for more whatever a CIE says; compilers need no more.
    remembered: Option<Facts>,
    /// Where the row begins: not behind the address.
    start: u64,
}

impl Machine {
    /// Follows the CIE's instructions and the FDE's to the end of the row that holds the address.
    #[inline(never)]
    #[unsafe(link_section = ".text.hot.grapnel")]
    fn follow(&mut self, entry: &Entry<'_>, names: FrameRegisters, address: u64) -> Option<()> {
        let mut code = entry.initial;
        loop {
            let Some(opcode) = code.u8() else {
                if self.initial.is_some() {
                    return (address < entry.end).then_some(());
                }
                (self.initial, code) = (Some(self.row), entry.instructions);
                continue;
            };
            let low = opcode & 0x3f;
            let instruction = gimli::DwCfa(if opcode < 0x40 { opcode } else { opcode & 0xc0 });
            // What it takes is read in one place for all: code that isn't in the processor's caches is what takes time.
            let register = match instruction {
                dw::DW_CFA_offset_extended
                | dw::DW_CFA_offset_extended_sf
                | dw::DW_CFA_restore_extended
                | dw::DW_CFA_undefined
                | dw::DW_CFA_same_value
                | dw::DW_CFA_def_cfa
                | dw::DW_CFA_def_cfa_sf
                | dw::DW_CFA_def_cfa_register
                | dw::DW_CFA_expression => code.uleb()?,
                _ => low.into(),
            };
            let register = Register(register.try_into().ok().filter(|number| *number < REGISTERS)?);
            let number = match instruction {
                dw::DW_CFA_advance_loc1 => code.u8()?.into(),
                dw::DW_CFA_advance_loc2 => code.u16()?.into(),
                dw::DW_CFA_advance_loc4 => code.u32()?.into(),
                dw::DW_CFA_offset
                | dw::DW_CFA_offset_extended
                | dw::DW_CFA_def_cfa
                | dw::DW_CFA_def_cfa_offset
                | dw::DW_CFA_def_cfa_expression
                | dw::DW_CFA_expression
                | dw::DW_CFA_GNU_args_size => code.uleb()?.cast_signed(),
                dw::DW_CFA_offset_extended_sf | dw::DW_CFA_def_cfa_sf | dw::DW_CFA_def_cfa_offset_sf => {
                    code.sleb()?
                }
                _ => low.into(),
            };
            // What no rule holds is left to others, as is all that is rare.
            let plain = || i32::try_from(number).ok();
            let factored = || i32::try_from(number.wrapping_mul(entry.data_alignment)).ok();
            let said = match instruction {
                dw::DW_CFA_nop | dw::DW_CFA_AARCH64_negate_ra_state | dw::DW_CFA_GNU_args_size => continue,
                dw::DW_CFA_advance_loc
                | dw::DW_CFA_advance_loc1
                | dw::DW_CFA_advance_loc2
                | dw::DW_CFA_advance_loc4 => {
                    // A CIE has one self.row.
                    self.initial?;
                    let next =
                        self.start.checked_add(number.cast_unsigned().wrapping_mul(entry.code_alignment))?;
                    if address < next {
                        return Some(());
                    }
                    self.start = next;
                    continue;
                }
                dw::DW_CFA_def_cfa
                | dw::DW_CFA_def_cfa_sf
                | dw::DW_CFA_def_cfa_register
                | dw::DW_CFA_def_cfa_offset
                | dw::DW_CFA_def_cfa_offset_sf => {
                    let cfa = match (instruction, self.row.cfa) {
                        (dw::DW_CFA_def_cfa, _) => Cfa::Plus(register, plain()?),
                        (dw::DW_CFA_def_cfa_sf, _) => Cfa::Plus(register, factored()?),
                        (dw::DW_CFA_def_cfa_register, Cfa::Plus(_, offset)) => Cfa::Plus(register, offset),
                        (dw::DW_CFA_def_cfa_offset, Cfa::Plus(register, _)) => Cfa::Plus(register, plain()?),
                        (_, Cfa::Plus(register, _)) => Cfa::Plus(register, factored()?),
                        _ => return None,
                    };
                    self.row.cfa = cfa;
                    continue;
                }
                dw::DW_CFA_def_cfa_expression => {
                    self.row.cfa = Cfa::AtFp(fp_plus(code.split(number.cast_unsigned())?, names.fp, true)?);
                    continue;
                }
                dw::DW_CFA_remember_state => {
                    // One of a CIE would be looked at again.
                    self.initial?;
                    if self.remembered.replace(self.row).is_some() {
                        return None;
                    }
                    continue;
                }
                dw::DW_CFA_restore_state => {
                    self.row = self.remembered.take()?;
                    continue;
                }
                dw::DW_CFA_restore | dw::DW_CFA_restore_extended => {
                    let initial: Facts = self.initial?;
                    if register == names.fp { initial.fp } else { initial.return_address }
                }
                dw::DW_CFA_undefined => Said::Undefined,
                dw::DW_CFA_same_value => Said::Same,
                dw::DW_CFA_offset | dw::DW_CFA_offset_extended | dw::DW_CFA_offset_extended_sf => {
                    factored().map_or(Said::Other, Said::AtCfa)
                }
                dw::DW_CFA_expression => {
                    let expression = code.split(number.cast_unsigned())?;
                    fp_plus(expression, names.fp, false).map_or(Said::Other, Said::AtFp)
                }
                _ => return None,
            };
            if register == names.fp {
                self.row.fp = said;
            } else if register == entry.return_address {
                self.row.return_address = said;
            } else if register == names.sp || register == AArch64::RA_SIGN_STATE {
                // The stack pointer is the CFA, and the sign of return addresses nothing but changed.
                return None;
            } else {
                continue;
            }
            // It may be more than is understood here.
            if matches!(said, Said::Other) {
                return None;
            }
        }
    }
}

/// The offset of an expression that is `fp + offset`, or `*(fp + offset)`, as compilers write them.
#[inline(never)]
fn fp_plus(mut expression: Bytes<'_>, fp: Register, deref: bool) -> Option<i32> {
    if u16::from(expression.u8()?) != u16::from(dw::DW_OP_breg0.0) + fp.0 {
        return None;
    }
    let offset = expression.sleb()?;
    if deref && expression.u8()? != dw::DW_OP_deref.0 {
        return None;
    }
    expression.0.is_empty().then_some(offset)?.try_into().ok()
}

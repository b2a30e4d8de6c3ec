//! The instructions of an FDE, followed up to an address, as far as a rule asks for what they say.
//!
//! Rows begin and end as gimli has them: the first row that holds the address is the one, also behind the end of its FDE.
//! Instructions that gimli refuses are given up on, since by an error code has no CFI.

use super::bytes::Bytes;
use super::entry::Entry;
use crate::cfi::facts::{Cfa, Facts, FrameRegisters, Said};
use gimli::constants as dw;
use gimli::{AArch64, Register};

/// States that may be remembered at a time: gimli has room for these whatever a CIE says.
const REMEMBERED: usize = 2;
/// So many registers gimli has room for, whichever they are.
const REGISTERS: u16 = 128;
/// The state at the start.
const BLANK: Facts = Facts {
    cfa: Cfa::Plus(Register(0), 0),
    fp: Said::Nothing,
    return_address: Said::Nothing,
    sp_is_cfa: true,
};

/// The facts that hold at an address.
pub(super) fn facts_at(entry: &Entry<'_>, names: FrameRegisters, address: u64) -> Option<Facts> {
    let own = entry.return_address;
    let others = [names.sp, names.fp, AArch64::RA_SIGN_STATE];
    if own.0 >= REGISTERS || others.contains(&own) || address < entry.start {
        return None;
    }
    let mut machine = Machine {
        row: BLANK,
        initial: None,
        remembered: [BLANK; REMEMBERED],
        depth: 0,
        start: entry.start,
        address,
    };
    machine.follow(entry, entry.initial, names)?;
    machine.initial = Some(machine.row);
    let is_found = machine.follow(entry, entry.instructions, names)?;
    (is_found || address < entry.end).then_some(machine.row)
}

#[derive(Debug)]
struct Machine {
    row: Facts,
    /// What the CIE says, once all of it was followed.
    initial: Option<Facts>,
    remembered: [Facts; REMEMBERED],
    depth: usize,
    /// Where the row begins: not behind `address`.
    start: u64,
    address: u64,
}

impl Machine {
    /// Follows instructions to the end of the row that holds the address, and says whether that is it; else to the end.
    fn follow(&mut self, entry: &Entry<'_>, mut code: Bytes<'_>, names: FrameRegisters) -> Option<bool> {
        let factored = |number: i64| -> Option<i32> {
            // What no rule holds is left to others, as is all that is rare.
            number.wrapping_mul(entry.data_alignment).try_into().ok()
        };
        while let Some(opcode) = code.u8() {
            let low = Register((opcode & 0x3f).into());
            let instruction = gimli::DwCfa(if opcode < 0x40 { opcode } else { opcode & 0xc0 });
            match instruction {
                dw::DW_CFA_nop | dw::DW_CFA_AARCH64_negate_ra_state => {}
                dw::DW_CFA_advance_loc
                | dw::DW_CFA_advance_loc1
                | dw::DW_CFA_advance_loc2
                | dw::DW_CFA_advance_loc4 => {
                    let delta = match instruction {
                        dw::DW_CFA_advance_loc => low.0.into(),
                        dw::DW_CFA_advance_loc1 => code.u8()?.into(),
                        dw::DW_CFA_advance_loc2 => code.u16()?.into(),
                        _ => code.u32()?,
                    };
                    let delta = u64::from(delta).wrapping_mul(entry.code_alignment);
                    // A CIE has one row.
                    self.initial?;
                    let next = self.start.checked_add(delta)?;
                    if self.address < next {
                        return Some(true);
                    }
                    self.start = next;
                }
                dw::DW_CFA_def_cfa => {
                    self.row.cfa = Cfa::Plus(register(&mut code)?, code.uleb()?.try_into().ok()?);
                }
                dw::DW_CFA_def_cfa_sf => {
                    self.row.cfa = Cfa::Plus(register(&mut code)?, factored(code.sleb()?)?);
                }
                dw::DW_CFA_def_cfa_register => {
                    let Cfa::Plus(_, offset) = self.row.cfa else { return None };
                    self.row.cfa = Cfa::Plus(register(&mut code)?, offset);
                }
                dw::DW_CFA_def_cfa_offset => {
                    let Cfa::Plus(register, _) = self.row.cfa else { return None };
                    self.row.cfa = Cfa::Plus(register, code.uleb()?.try_into().ok()?);
                }
                dw::DW_CFA_def_cfa_offset_sf => {
                    let Cfa::Plus(register, _) = self.row.cfa else { return None };
                    self.row.cfa = Cfa::Plus(register, factored(code.sleb()?)?);
                }
                dw::DW_CFA_def_cfa_expression => {
                    self.row.cfa = Cfa::AtFp(fp_plus(block(&mut code)?, names.fp, true)?);
                }
                dw::DW_CFA_offset => {
                    let number = code.uleb()?.cast_signed();
                    if let Some(said) = self.tracked(low, entry, names)? {
                        *said = Said::AtCfa(factored(number)?);
                    }
                }
                dw::DW_CFA_offset_extended | dw::DW_CFA_offset_extended_sf => {
                    let register = register(&mut code)?;
                    let number = match instruction {
                        dw::DW_CFA_offset_extended => code.uleb()?.cast_signed(),
                        _ => code.sleb()?,
                    };
                    if let Some(said) = self.tracked(register, entry, names)? {
                        *said = Said::AtCfa(factored(number)?);
                    }
                }
                dw::DW_CFA_restore | dw::DW_CFA_restore_extended => {
                    let register = match instruction {
                        dw::DW_CFA_restore => low,
                        _ => register(&mut code)?,
                    };
                    let initial = self.initial?;
                    if register == names.fp {
                        self.row.fp = initial.fp;
                    } else if register == entry.return_address {
                        self.row.return_address = initial.return_address;
                    }
                }
                dw::DW_CFA_undefined => {
                    if let Some(said) = self.tracked(register(&mut code)?, entry, names)? {
                        *said = Said::Undefined;
                    }
                }
                dw::DW_CFA_same_value => {
                    if let Some(said) = self.tracked(register(&mut code)?, entry, names)? {
                        *said = Said::Same;
                    }
                }
                dw::DW_CFA_expression => {
                    let register = register(&mut code)?;
                    let expression = block(&mut code)?;
                    if let Some(said) = self.tracked(register, entry, names)? {
                        *said = Said::AtFp(fp_plus(expression, names.fp, false)?);
                    }
                }
                dw::DW_CFA_remember_state => {
                    // Those of a CIE would be looked at again.
                    self.initial?;
                    *self.remembered.get_mut(self.depth)? = self.row;
                    self.depth += 1;
                }
                dw::DW_CFA_restore_state => {
                    self.depth = self.depth.checked_sub(1)?;
                    self.row = *self.remembered.get(self.depth)?;
                }
                dw::DW_CFA_GNU_args_size => {
                    code.uleb()?;
                }
                _ => return None,
            }
        }
        Some(false)
    }

    /// What is said of a register, if a rule asks for it. The outer `None` is for what is given up on.
    fn tracked(
        &mut self,
        register: Register,
        entry: &Entry<'_>,
        names: FrameRegisters,
    ) -> Option<Option<&mut Said>> {
        if register == names.fp {
            Some(Some(&mut self.row.fp))
        } else if register == entry.return_address {
            Some(Some(&mut self.row.return_address))
        } else if register == names.sp || register == AArch64::RA_SIGN_STATE {
            // The stack pointer is the CFA, and the sign of return addresses nothing but changed.
            None
        } else {
            Some(None)
        }
    }
}

fn register(code: &mut Bytes<'_>) -> Option<Register> {
    let number = code.uleb()?;
    (number < REGISTERS.into()).then_some(Register(number as u16))
}

fn block<'a>(code: &mut Bytes<'a>) -> Option<Bytes<'a>> {
    let len = code.uleb()?;
    code.split(len)
}

/// The offset of an expression that is `fp + offset`, or `*(fp + offset)`, as compilers write them.
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

//! What a rule is made of: the little that a row says of the frame pointer, the return address and the CFA.

use super::Row;
use gimli::{CfaRule, Operation, Register, RegisterRule, UnwindExpression};

/// The registers that an instruction set's rules are about, beside the return address, which a CIE names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameRegisters {
    pub(crate) sp: Register,
    pub(crate) fp: Register,
}

/// Where the CFA is, which is the caller's sp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cfa {
    /// `register + offset`
    Plus(Register, i32),
    /// `*(fp + offset)`
    AtFp(i32),
    /// Anything else, or the caller's sp is something else.
    Other,
}

/// What is said of a register of the caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Said {
    #[default]
    Nothing,
    Undefined,
    Same,
    /// `*(CFA + offset)`
    AtCfa(i32),
    /// `*(fp + offset)`
    AtFp(i32),
    /// Anything else.
    Other,
}

/// The facts of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) cfa: Cfa,
    pub(crate) fp: Said,
    pub(crate) return_address: Said,
}

impl Facts {
    /// Those of a row. `None` of a signal frame's, which isn't left by a rule.
    ///
    /// An offset that is too large for these is too large for a rule.
    pub(crate) fn of(row: &Row<'_>, names: FrameRegisters) -> Option<Self> {
        if row.fde.is_signal_trampoline() {
            return None;
        }
        let cfa = match row.row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                i32::try_from(*offset).ok().map(|offset| Cfa::Plus(*register, offset))
            }
            CfaRule::Expression(e) => fp_plus(row, names.fp, e, true).map(Cfa::AtFp),
        };
        let said = |register| match row.row.register(register) {
            None => Said::Nothing,
            Some(RegisterRule::Undefined) => Said::Undefined,
            Some(RegisterRule::SameValue) => Said::Same,
            Some(RegisterRule::Offset(offset)) => offset.try_into().map_or(Said::Other, Said::AtCfa),
            Some(RegisterRule::Expression(e)) => {
                fp_plus(row, names.fp, &e, false).map_or(Said::Other, Said::AtFp)
            }
            Some(_) => Said::Other,
        };
        // Where nothing is said of it the caller's sp is the CFA.
        let sp_is_cfa = matches!(row.row.register(names.sp), None | Some(RegisterRule::ValOffset(0)));
        Some(Facts {
            cfa: cfa.filter(|_| sp_is_cfa).unwrap_or(Cfa::Other),
            fp: said(names.fp),
            return_address: said(row.fde.cie().return_address_register()),
        })
    }
}

/// The offset of an expression that is `fp + offset`, or `*(fp + offset)`.
fn fp_plus(row: &Row<'_>, fp: Register, expression: &UnwindExpression<usize>, deref: bool) -> Option<i32> {
    let bytes = expression.get(row.section).ok()?;
    let mut operations = bytes.operations(row.fde.cie().encoding());
    let Operation::RegisterOffset { register, offset, base_type } = operations.next().ok()?? else {
        return None;
    };
    if register != fp || base_type.0 != 0 {
        return None;
    }
    if deref && !matches!(operations.next().ok()??, Operation::Deref { size: 8, space: false, .. }) {
        return None;
    }
    operations.next().ok()?.is_none().then_some(offset)?.try_into().ok()
}

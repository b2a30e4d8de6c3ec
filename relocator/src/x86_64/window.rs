//! Where a window ends.

use arrayvec::ArrayVec;
use grapnel_arch::{CodeAddr, x86_64::Inst};

use super::{CODE_KEPT, culprit};
use crate::{
    Error, Window, WindowOptions,
    window::{Insts, MAX_INSTS, function_ends, next, padding},
};

pub(crate) fn window(
    from: CodeAddr,
    bytes: &[u8],
    min_len: usize,
    options: WindowOptions,
) -> Result<Window, Error> {
    let min_len = min_len.max(1);
    let mut insts = ArrayVec::<Inst, MAX_INSTS>::new();
    let mut len = 0;
    while len < min_len {
        let at = from.add(len as u64);
        let is_needed = |inst: &Inst| {
            let target = inst.flow().target();
            target.is_some_and(|target| target.offset_within(at, (min_len - len) as u64).is_some())
        };
        if let Some(last) = insts.last()
            && function_ends(last, len, options.extent, || insts.iter().any(is_needed))?
        {
            let padded = padding(last, from, bytes, (len, min_len), options)?;
            return Ok(Window { from, len: padded, code_len: len, insts: insts_of(insts, bytes, options) });
        }
        let inst = next(&insts, at, &bytes[len.min(bytes.len())..])?;
        len += inst.bytes().len();
        insts.push(inst);
    }
    if let (Some(last), Some(extent)) = (insts.last(), options.extent)
        && len > extent
    {
        return Err(Error::BeyondExtent { culprit: culprit(last), extent });
    }
    Ok(Window { from, len, code_len: len, insts: insts_of(insts, bytes, options) })
}

fn insts_of(list: ArrayVec<Inst, MAX_INSTS>, bytes: &[u8], options: WindowOptions) -> Insts {
    let code = bytes.iter().copied().take(CODE_KEPT).collect();
    Insts::X86_64(super::Insts { list, code, entry: options.entry, shadow_stack: options.shadow_stack })
}

//! Stacks as names.

use crate::Analysis;
use crate::report::words::harmless;
use crate::stacks::Node;
use crate::symbols::{Frame, Symbols};
use std::borrow::Cow;

/// What stands for a stack that is not known.
pub(super) const NO_STACK: &str = "[no stack]";

/// A frame as it is shown.
#[derive(Debug)]
pub(crate) struct Named<'f> {
    pub(crate) name: Cow<'f, str>,
    pub(crate) file: Option<&'f str>,
    pub(crate) line: Option<u32>,
}

/// Calls `each` with every frame of a stack, leaf first, inlined ones too. An unknown stack has one frame that says so.
pub(crate) fn frames(
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    stack: u32,
    mut each: impl FnMut(&Node, Named<'_>),
) {
    let mut any = false;
    for node in &analysis.stacks.frames(stack).collect::<Vec<_>>() {
        any = true;
        if let Some(mark) = node.mark() {
            each(node, Named { name: mark.into(), file: None, line: None });
            continue;
        }
        for frame in symbols.frames(&analysis.modules, node) {
            each(node, Named { name: name(analysis, node, frame), file: frame.file(), line: frame.line() });
        }
    }
    if !any {
        let node = Node { parent: 0, module: 0, pc: 0, flags: 0 };
        each(&node, Named { name: NO_STACK.into(), file: None, line: None });
    }
}

/// The function; without one, the module and the offset in it; in no module, the address.
pub(crate) fn name<'f>(analysis: &Analysis, node: &Node, frame: &'f Frame) -> Cow<'f, str> {
    if let Some(function) = frame.function() {
        return harmless(function);
    }
    let Some(module) = analysis.modules.get(node.module) else { return format!("[{:#x}]", node.pc).into() };
    let path = String::from_utf8_lossy(&module.path);
    let file = path.rsplit('/').next().unwrap_or_default();
    let file = harmless(file.trim_matches(['[', ']']));
    format!("[{file}+{:#x}]", node.pc.wrapping_sub(module.bias)).into()
}

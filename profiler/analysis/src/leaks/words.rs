//! What roots, kinds and doubts are called.

use super::found::Kind;
use crate::Analysis;
use crate::report::words::harmless;
use grapnel_trace::leaks::{Interior, LeakScan, Root, RootKind, doubts};

/// A kind, as it stands in figures.
pub fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Direct => "directly lost",
        Kind::Indirect => "indirectly lost",
        Kind::Possible => "possibly lost",
        Kind::Reachable => "still reachable",
    }
}

/// A kind, for programs.
pub(crate) fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Direct => "direct",
        Kind::Indirect => "indirect",
        Kind::Possible => "possible",
        Kind::Reachable => "reachable",
    }
}

/// A root's kind, for programs.
pub(crate) fn root_name(kind: RootKind) -> &'static str {
    match kind {
        RootKind::Global => "global",
        RootKind::ThreadLocal => "thread-local",
        RootKind::Mapping => "mapping",
        RootKind::Stack => "stack",
        RootKind::Register => "register",
        RootKind::Loader => "loader",
        RootKind::Before => "before",
        RootKind::Possible => "possible",
        _ => "lost",
    }
}

pub(crate) fn interior_name(interior: Interior) -> &'static str {
    match interior {
        Interior::Start => "start",
        Interior::Known => "known",
        _ => "all",
    }
}

/// A root, in words.
pub fn root(analysis: &Analysis, root: &Root) -> String {
    let name = String::from_utf8_lossy(&root.name);
    let name = harmless(&name);
    let thread = match (root.thread, name.is_empty() || root.kind == RootKind::Register) {
        (0, _) => "a thread".to_owned(),
        (id, true) => format!("thread {id}"),
        (id, false) => format!("thread {id} ({name})"),
    };
    match root.kind {
        RootKind::Global => {
            let module = analysis.modules.get(root.module);
            let path = module.map_or("?".into(), |module| String::from_utf8_lossy(&module.path));
            let file = harmless(path.rsplit('/').next().unwrap_or_default()).into_owned();
            let offset = root.address.wrapping_sub(module.map_or(0, |module| module.bias));
            match (name.is_empty(), root.address) {
                (true, 0) => format!("variables of {file}"),
                (true, _) => format!("a variable at {file}+{offset:#x}"),
                (false, _) => format!("`{name}` in {file}+{offset:#x}"),
            }
        }
        RootKind::ThreadLocal => format!("a thread-local variable of {thread}"),
        RootKind::Mapping if root.address == 0 => "memory that the program mapped".to_owned(),
        RootKind::Mapping => format!("memory mapped at {:#x}", root.address),
        RootKind::Stack => format!("the stack of {thread}"),
        RootKind::Register if name.is_empty() => format!("a register of {thread}"),
        RootKind::Register => format!("{name} of {thread}"),
        RootKind::Loader => "memory of the dynamic linker".to_owned(),
        RootKind::Before => "memory from before the recording".to_owned(),
        RootKind::Possible => "a pointer that may be none".to_owned(),
        _ => "nothing".to_owned(),
    }
}

/// Why a scan may have missed something, or called something by the wrong name: a sentence each.
pub fn doubts(scan: &LeakScan) -> Vec<&'static str> {
    let all = [
        (doubts::LOST_EVENTS, "events were lost before: blocks held by ones that nobody knows of look lost"),
        (
            doubts::BUSY,
            "a thread was in the middle of an allocation: what it was about to hold may look lost",
        ),
        (
            doubts::BEFORE,
            "there are blocks from before the recording: all memory that they may lie in counts as roots, so less looks lost than is",
        ),
        (doubts::UNREADABLE, "some memory could not be read: what it holds may look lost"),
        (doubts::CUT, "there were more roots or paths than are told apart: some are put together"),
    ];
    all.into_iter().filter(|(doubt, _)| scan.doubts & doubt != 0).map(|(_, text)| text).collect()
}

//! Why a hook can't be put in or taken out, and what the caller can do instead.

use grapnel_relocator::{CodeAddr, Culprit, Registers};

use crate::{Bytes, Errno, HookId, PatchWay, Proof, Refusal};

/// Why a hook can't be put in or taken out. Nothing has been changed, unless the variant says so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The target, or its replacement, isn't in memory that may be executed.
    #[error("{target} is not in executable memory")]
    NotExecutable {
        /// Its address.
        target: CodeAddr,
    },
    /// The target's bytes can't be read.
    #[error("the code at {target} can't be read")]
    Unreadable {
        /// The target.
        target: CodeAddr,
    },
    /// The same address is hooked twice in one transaction.
    #[error("{target} is already hooked in this transaction, as number {}", first.index())]
    AlreadyPlanned {
        /// The address.
        target: CodeAddr,
        /// The hook that was there first.
        first: HookId,
    },
    /// The patch would overlap that of another hook of the transaction.
    #[error("the patch at {target} would overlap that of hook number {} in this transaction", first.index())]
    Overlaps {
        /// Where the patch would be.
        target: CodeAddr,
        /// The hook that was there first.
        first: HookId,
    },
    /// The patch would overlap one that is in.
    #[error("the patch at {target} would overlap the one at {standing}")]
    Taken {
        /// Where the patch would be.
        target: CodeAddr,
        /// The one that is there.
        standing: CodeAddr,
    },
    /// Where the function around a probe begins and ends isn't known.
    #[error("the function around {target} isn't known")]
    NoFunction {
        /// Where the probe would be.
        target: CodeAddr,
    },
    /// The processor keeps a shadow stack for this process, which the listener's way of seeing the return would break.
    #[error("the return of {target} can't be listened to: the process has a shadow stack")]
    ShadowStack {
        /// The function.
        target: CodeAddr,
    },
    /// All vector state is to be kept, and the system doesn't let programs save it.
    #[error(
        "not all vector registers can be kept at {target}: the system or the processor lacks what it takes"
    )]
    NoVectors {
        /// The function or the probed place.
        target: CodeAddr,
    },
    /// There is nothing of this number in the set.
    #[error("attachment {number} isn't in this set")]
    NotAttached {
        /// Its number.
        number: u64,
    },
    /// The replacement is the function itself, or lies in the bytes that would be overwritten.
    #[error(
        "the replacement {replacement} is {target} itself, or lies in the bytes of it that would be overwritten"
    )]
    ReplacementInPatch {
        /// The target.
        target: CodeAddr,
        /// The replacement.
        replacement: CodeAddr,
    },
    /// The replacement is attached to the function already. It knows one original, and with its own entry for that it would call
    /// itself without end.
    #[error("{target} is already replaced by {replacement}")]
    AlreadyReplaced {
        /// The target.
        target: CodeAddr,
        /// The replacement.
        replacement: CodeAddr,
    },
    /// The function's first instructions can't be moved.
    #[error("{target} ({bytes}) can't be hooked: {source}")]
    Relocation {
        /// The target.
        target: CodeAddr,
        /// Its first bytes.
        bytes: Bytes,
        /// The reason.
        source: grapnel_relocator::Error,
    },
    /// There is no memory close enough for a trampoline that leaves all registers alone.
    #[error(
        "{target} ({bytes}) can't be hooked: there is no room close enough, and farther away its code would change {clobbers}"
    )]
    Clobbers {
        /// The target.
        target: CodeAddr,
        /// Its first bytes.
        bytes: Bytes,
        /// The registers that it would change.
        clobbers: Registers,
    },
    /// A branch of the function, or of one close by, goes into the bytes that would be overwritten.
    #[error(
        "{target} ({bytes}) can't be hooked: {culprit} branches into the bytes that would be overwritten"
    )]
    InboundBranch {
        /// The target.
        target: CodeAddr,
        /// Its first bytes.
        bytes: Bytes,
        /// The branch.
        culprit: Culprit,
    },
    /// Nothing is known against the hook, but it could not be proved safe, and a proof was asked for.
    #[error("{target} ({bytes}) could not be proved safe to hook: {proof}")]
    Unproved {
        /// The target.
        target: CodeAddr,
        /// Its first bytes.
        bytes: Bytes,
        /// What could not be shown.
        proof: Proof,
    },
    /// A [gate](crate::Transaction::replace_gated) can't have so many bytes.
    #[error("{len} bytes can't be the gate of {target}: they are too many, or no whole instructions")]
    BadGate {
        /// The target.
        target: CodeAddr,
        /// How many.
        len: usize,
    },
    /// There is no memory for code near enough to the target.
    #[error("no memory for code can be had near {target}: {errno}")]
    NoCodeMemory {
        /// The target.
        target: CodeAddr,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The memory for code could not be made executable.
    #[error("the trampoline of {target} could not be made executable: {errno}")]
    NotSealed {
        /// The target.
        target: CodeAddr,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The code changed between preparation and commit.
    #[error("the code at {site} changed since it was looked at: expected {expected}, found {found}")]
    Changed {
        /// Where the patch was to go.
        site: CodeAddr,
        /// What was there.
        expected: Bytes,
        /// What is there now.
        found: Bytes,
    },
    /// The patch is no longer what this hook wrote; someone else has patched the function since.
    #[error("the code at {site} was patched by someone else: expected {expected}, found {found}")]
    ForeignPatch {
        /// Where the patch is.
        site: CodeAddr,
        /// What this hook wrote.
        expected: Bytes,
        /// What is there now; empty if nothing can be read there.
        found: Bytes,
    },
    /// What is attached is not in force: the patch that leads to it is gone, with its memory or to bytes that were there
    /// before, or its removal failed half way.
    #[error("the patch at {site} isn't in force: expected {expected}, found {found}")]
    NotInForce {
        /// Where the patch is.
        site: CodeAddr,
        /// What was written there.
        expected: Bytes,
        /// What is there now; empty if the memory is gone.
        found: Bytes,
    },
    /// Writing the patch failed.
    #[error("the code at {site} can't be written {way}: {errno}")]
    Write {
        /// Where the patch was to go.
        site: CodeAddr,
        /// The way that was tried last.
        way: PatchWay,
        /// The kernel's answer; `EACCES` if the pages are shared or may be written, and so aren't exchanged, or if they may be
        /// written and yet could not be.
        errno: Errno,
    },
    /// The code can't be patched while other threads run it.
    #[error("the code at {site} can't be patched while other threads may run it: {refusal}")]
    NotLive {
        /// Where the patch was to go.
        site: CodeAddr,
        /// Why.
        refusal: Refusal,
    },
    /// The hook has been taken out before.
    #[error("the hook at {site} has been removed before")]
    AlreadyRemoved {
        /// Where it was.
        site: CodeAddr,
    },
}

impl Error {
    /// What finding other bytes means when a hook is taken out.
    pub(crate) fn of_removal(self) -> Self {
        match self {
            Self::Changed { site, expected, found } => Self::ForeignPatch { site, expected, found },
            other => other,
        }
    }

    /// The address that the error is about: the offending instruction where there is one, else the target or the site;
    /// 0 if it is about none.
    pub fn address(&self) -> CodeAddr {
        match self {
            Self::NotExecutable { target }
            | Self::Unreadable { target }
            | Self::AlreadyPlanned { target, .. }
            | Self::Overlaps { target, .. }
            | Self::Taken { target, .. }
            | Self::NoFunction { target }
            | Self::ShadowStack { target }
            | Self::NoVectors { target }
            | Self::ReplacementInPatch { target, .. }
            | Self::AlreadyReplaced { target, .. }
            | Self::Unproved { target, .. }
            | Self::Clobbers { target, .. }
            | Self::BadGate { target, .. }
            | Self::NoCodeMemory { target, .. }
            | Self::NotSealed { target, .. } => *target,
            Self::Relocation { target, source, .. } => match source.culprit() {
                Some(culprit) => culprit.at,
                None => *target,
            },
            Self::InboundBranch { culprit, .. } => culprit.at,
            Self::NotAttached { .. } => CodeAddr(0),
            Self::Changed { site, .. }
            | Self::ForeignPatch { site, .. }
            | Self::NotInForce { site, .. }
            | Self::Write { site, .. }
            | Self::NotLive { site, .. }
            | Self::AlreadyRemoved { site } => *site,
        }
    }

    /// The bytes at that address, where they matter: those of the instruction, or the first ones of the function.
    pub fn bytes(&self) -> Option<Bytes> {
        match self {
            Self::Relocation { bytes, source, .. } => {
                Some(source.culprit().map_or(*bytes, |culprit| Bytes::new(&culprit.bytes)))
            }
            Self::InboundBranch { culprit, .. } => Some(Bytes::new(&culprit.bytes)),
            Self::Unproved { bytes, .. } | Self::Clobbers { bytes, .. } => Some(*bytes),
            Self::Changed { found, .. }
            | Self::ForeignPatch { found, .. }
            | Self::NotInForce { found, .. } => Some(*found),
            _ => None,
        }
    }

    /// The offending instruction as text, if it is one.
    pub fn instruction(&self) -> Option<&str> {
        match self {
            Self::Relocation { source, .. } => source.culprit().map(|culprit| culprit.text.as_str()),
            Self::InboundBranch { culprit, .. } => Some(&culprit.text),
            _ => None,
        }
    }

    /// What the caller could do instead.
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotExecutable { .. } => {
                "check that the address is the start of a function of a loaded object"
            }
            Self::Unreadable { .. } => {
                "where text is execute-only, rebind the words by which the function is called; else check the address"
            }
            Self::AlreadyPlanned { .. } | Self::Overlaps { .. } => {
                "hook it once, and let the replacement do both; several names may stand for one function"
            }
            Self::Taken { .. } => {
                "attach to the function or the place that is hooked already, or remove that first"
            }
            Self::NoFunction { .. } => "give the range of the function",
            Self::ShadowStack { .. } => "listen to the entry only, or replace the function",
            Self::NoVectors { .. } => {
                "use a listener that asks for no vectors; probes need them all on this processor"
            }
            Self::AlreadyReplaced { .. } => "remove what is attached first, or use a replacement of its own",
            Self::ReplacementInPatch { .. } => "choose a replacement outside the function",
            Self::Relocation { source, .. } => source.remedy(),
            Self::InboundBranch { .. } => "hook the function's callers instead, or a function that it calls",
            Self::BadGate { .. } => "make it of whole instructions, 4096 bytes at most",
            Self::Unproved { .. } => "give the function's size, or accept the assumption",
            Self::NoCodeMemory { .. } | Self::Clobbers { .. } => {
                "choose a target with free address space within 2 GiB, allow executable memory in the security policy, or rebind the GOT entries instead"
            }
            Self::NotSealed { .. } => {
                "allow executable memory in the security policy, or rebind the GOT entries instead"
            }
            Self::Changed { .. } => "prepare the transaction again",
            Self::ForeignPatch { .. } => {
                "have the other patch removed first; this hook stays in, and its code stays mapped"
            }
            Self::NotInForce { .. } => {
                "have the set forget the functions of an object that was unloaded; else remove what is attached there first, again if that failed"
            }
            Self::Write { .. } => {
                "allow /proc/self/mem or mprotect on code in the security policy, or rebind the GOT entries instead"
            }
            Self::NotLive { refusal, .. } => refusal.remedy(),
            Self::AlreadyRemoved { .. } | Self::NotAttached { .. } => "nothing needs to be done",
        }
    }
}

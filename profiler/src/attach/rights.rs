//! Why the kernel lets this process not trace that one, and what helps.
//!
//! The kernel says no more than that it doesn't (ptrace(2), "Ptrace access mode checking"): what is amiss is guessed in the order
//! in which it looks itself.

use super::freeze::threads;
use super::target::Status;
use super::tracee::is_filtered;
use std::fs;
use std::os::unix::fs::MetadataExt;

/// CAP_SYS_PTRACE, as a bit of the sets of capabilities.
const TRACE_ALL: u64 = 1 << 19;
/// What users are called that have no number in a user namespace (/proc/sys/kernel/overflowuid).
const OVERFLOW: u32 = 65534;

/// What can be known of the two of them.
#[derive(Clone, Debug, Default)]
struct Facts {
    /// Effective user ids: this process's and that one's.
    users: Option<(u32, u32)>,
    /// Whether this process is in a user namespace, where others' users may have no number.
    is_inside: bool,
    /// Whether this process has CAP_SYS_PTRACE, and that one a capability that this one hasn't.
    traces_all: bool,
    is_above: bool,
    /// Whether a filter for system calls keeps this process from tracing anybody.
    is_filtered: bool,
    /// Who traces it already.
    tracer: Option<String>,
    /// `kernel.yama.ptrace_scope`
    scope: String,
    /// It isn't dumpable: its files in `/proc` are root's.
    is_hidden: bool,
}

/// Says why, for a sentence that begins with "process N can't be traced: ".
pub(crate) fn why_denied(pid: u32) -> String {
    Facts::of(pid).reason()
}

impl Facts {
    fn of(pid: u32) -> Self {
        let status = Status::of(&format!("/proc/{pid}/status")).ok();
        let own = Status::of("/proc/self/status").ok();
        // Real, effective, saved: files and traces go by the second.
        let user = |status: &Status| status.field("Uid")?.split_whitespace().nth(1)?.parse::<u32>().ok();
        let users = own.as_ref().and_then(user).zip(status.as_ref().and_then(user));
        let set = |status: &Option<Status>, name: &str| {
            let text = status.as_ref()?.field(name)?;
            u64::from_str_radix(text, 16).ok()
        };
        let ours = set(&own, "CapEff").unwrap_or(0);
        let theirs = set(&status, "CapPrm").unwrap_or(0);
        let is_other = |&tracer: &u32| tracer != 0 && tracer != std::process::id();
        let tracer =
            |tid: i32| Status::of(&format!("/proc/{pid}/task/{tid}/status")).ok()?.number("TracerPid");
        let tracer = threads(pid).unwrap_or_default().into_iter().filter_map(tracer).find(is_other);
        let named = |tracer: u32| {
            let name = fs::read_to_string(format!("/proc/{tracer}/comm")).unwrap_or_default();
            format!("{} (pid {tracer})", name.trim())
        };
        let is_roots = fs::metadata(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.uid() == 0);
        Self {
            users,
            is_inside: fs::read_to_string("/proc/self/uid_map")
                .is_ok_and(|map| !map.split_whitespace().eq(["0", "0", "4294967295"])),
            traces_all: ours & TRACE_ALL != 0,
            is_above: theirs & !ours != 0,
            is_filtered: is_filtered(),
            tracer: tracer.map(named),
            scope: fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default().trim().into(),
            is_hidden: is_roots && users.is_some_and(|(_, user)| user != 0),
        }
    }

    fn reason(&self) -> String {
        const CONTAINER: &str = "in a container, start that with --cap-add=SYS_PTRACE";
        if let Some(tracer) = &self.tracer {
            return format!("it is traced by {tracer}; end that first");
        }
        if self.is_filtered {
            return "a filter for system calls (seccomp) forbids grapnel itself to trace; in a container, start that with \
                    --cap-add=SYS_PTRACE or --security-opt seccomp=unconfined; elsewhere run grapnel outside of what made the filter"
                .into();
        }
        if self.scope == "3" {
            return "Yama lets nobody trace until the next boot (kernel.yama.ptrace_scope is 3)".into();
        }
        if self.traces_all {
            return "although this process has CAP_SYS_PTRACE: it is of another user namespace that this one has no say in, or a \
                    security module (AppArmor, SELinux) forbids it; run grapnel on the host, as root"
                .into();
        }
        match self.users {
            Some((_, OVERFLOW)) if self.is_inside => {
                return "it belongs to a user that has no number in this user namespace; run grapnel on the host, as that user \
                        or as root"
                    .into();
            }
            Some((0, theirs)) if theirs != 0 => {
                return format!(
                    "it belongs to another user (uid {theirs}), and this root lacks CAP_SYS_PTRACE; {CONTAINER}"
                );
            }
            Some((ours, theirs)) if ours != theirs => {
                return format!(
                    "it belongs to another user (uid {theirs}); run grapnel as that user or as root"
                );
            }
            _ => {}
        }
        let is_root = self.users.is_some_and(|(ours, _)| ours == 0);
        match self.scope.as_str() {
            "1" if is_root => format!(
                "Yama lets only a process's ancestors trace it (kernel.yama.ptrace_scope is 1), and this root lacks \
                 CAP_SYS_PTRACE; {CONTAINER}"
            ),
            "1" => "Yama lets only a process's ancestors trace it (kernel.yama.ptrace_scope is 1); run grapnel as root, or set \
                    it to 0 with sysctl"
                .into(),
            "2" if is_root => format!(
                "Yama lets only administrators trace (kernel.yama.ptrace_scope is 2), and this root lacks CAP_SYS_PTRACE; \
                 {CONTAINER}"
            ),
            "2" => {
                "Yama lets only administrators trace (kernel.yama.ptrace_scope is 2); run grapnel as root".into()
            }
            _ if self.is_hidden => {
                "it isn't dumpable: it changed its user, has capabilities, or said so itself; run grapnel as root".into()
            }
            _ if self.is_above => format!(
                "it has capabilities that this process hasn't, which takes CAP_SYS_PTRACE; run grapnel as root, or, {CONTAINER}"
            ),
            _ => format!("this process lacks CAP_SYS_PTRACE; run grapnel as root, or, {CONTAINER}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_comes_with_what_helps() {
        let mine = || Facts { users: Some((1000, 1000)), ..Facts::default() };
        let said = |facts: Facts, words: [&str; 2]| {
            let reason = facts.reason();
            assert!(words.iter().all(|word| reason.contains(word)), "{reason}: {facts:?}");
        };
        said(Facts { tracer: Some("gdb (pid 7)".into()), ..mine() }, ["gdb (pid 7)", "end that first"]);
        said(
            Facts { is_filtered: true, traces_all: true, ..mine() },
            ["seccomp=unconfined", "outside of what made"],
        );
        said(Facts { users: Some((1000, 33)), ..mine() }, ["uid 33", "as that user or as root"]);
        said(Facts { users: Some((0, 33)), ..mine() }, ["uid 33", "--cap-add=SYS_PTRACE"]);
        let inside = Facts { users: Some((0, OVERFLOW)), is_inside: true, ..Facts::default() };
        said(inside, ["no number in this user namespace", "on the host"]);
        said(Facts { scope: "1".into(), ..mine() }, ["ptrace_scope is 1", "with sysctl"]);
        let root = |scope: &str| Facts { users: Some((0, 0)), scope: scope.into(), ..Facts::default() };
        said(root("1"), ["ptrace_scope is 1", "--cap-add=SYS_PTRACE"]);
        said(root("2"), ["ptrace_scope is 2", "--cap-add=SYS_PTRACE"]);
        said(Facts { scope: "2".into(), ..mine() }, ["ptrace_scope is 2", "run grapnel as root"]);
        said(Facts { scope: "3".into(), traces_all: true, ..mine() }, ["until the next boot", "is 3"]);
        said(Facts { traces_all: true, ..mine() }, ["user namespace", "AppArmor"]);
        said(Facts { is_hidden: true, ..mine() }, ["isn't dumpable", "run grapnel as root"]);
        said(Facts { is_above: true, ..mine() }, ["capabilities that this process hasn't", "CAP_SYS_PTRACE"]);
        said(mine(), ["lacks CAP_SYS_PTRACE", "--cap-add=SYS_PTRACE"]);
    }
}

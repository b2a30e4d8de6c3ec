//! The system calls that the agent makes, its hooks' engine and its unwinder included.

use crate::native::CALLS;
use syscalls::Sysno;

/// All of them but those that end a thread or the process.
pub(super) fn all() -> impl Iterator<Item = Sysno> {
    COMMON.iter().chain(CALLS).copied()
}

const COMMON: &[Sysno] = &[
    Sysno::brk,
    Sysno::clock_gettime,
    Sysno::close,
    Sysno::faccessat,
    Sysno::faccessat2,
    Sysno::fgetxattr,
    Sysno::ftruncate,
    Sysno::futex,
    Sysno::getcwd,
    Sysno::getdents64,
    Sysno::getegid,
    Sysno::geteuid,
    Sysno::getgid,
    Sysno::getpid,
    Sysno::getppid,
    Sysno::gettid,
    Sysno::getuid,
    Sysno::kcmp,
    Sysno::madvise,
    Sysno::membarrier,
    Sysno::memfd_create,
    Sysno::mincore,
    Sysno::mprotect,
    Sysno::mremap,
    Sysno::munmap,
    Sysno::nanosleep,
    Sysno::openat,
    Sysno::prctl,
    Sysno::pread64,
    Sysno::prlimit64,
    Sysno::process_vm_readv,
    Sysno::process_vm_writev,
    Sysno::pwrite64,
    Sysno::read,
    Sysno::readlinkat,
    Sysno::rt_sigaction,
    Sysno::rt_sigprocmask,
    Sysno::sched_yield,
    Sysno::shmctl,
    Sysno::sigaltstack,
    Sysno::statx,
    Sysno::tgkill,
    Sysno::tkill,
    Sysno::write,
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::env::consts::ARCH;
    use std::fs;
    use std::path::Path;

    /// The names behind `Sysno::` in all sources of a folder.
    fn named(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).expect("the folder is there").flatten() {
            let path = entry.path();
            // A kernel that tests make up, machines that this is not, and a mode of its own.
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let is_of_others = match &*name {
                "aarch64" | "arm" | "x86_64" => name != ARCH,
                "kernel64.rs" => size_of::<usize>() != 8,
                _ => false,
            };
            if is_of_others || ["fake", "debug", "calls.rs"].contains(&&*name) {
                continue;
            }
            if path.is_dir() {
                named(&path, found);
            } else {
                let text = fs::read_to_string(&path).expect("a source can be read");
                for rest in text.split("Sysno::").skip(1) {
                    let end =
                        rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
                    found.push(rest[..end].into());
                }
            }
        }
    }

    #[test]
    fn all_calls_are_in_the_list() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut found = Vec::new();
        for folder in ["profiler/agent/src", "profiler/unwind/src", "hook-core/src"] {
            named(&root.join(folder), &mut found);
        }
        found.sort();
        found.dedup();
        assert!(found.len() > 30, "{found:?}");
        let is_listed = |name: &&String| all().any(|call| call.name() == **name);
        let missing: Vec<_> = found.iter().filter(|name| !is_listed(name)).collect();
        // The program's own, whose number is looked at, and a function.
        let others = ["exit", "exit_group", "new", "seccomp"];
        assert_eq!(missing, others);
    }
}

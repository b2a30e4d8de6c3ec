//! Whether memory is about to be used up, before the kernel ends processes for it: by the limits of the control groups
//! that a process is in, and by what the machine has left.

use std::path::{Path, PathBuf};

/// What of a limit is left when it is short: a twentieth.
const LEFT: u64 = 20;

/// What limits a process.
#[derive(Debug)]
pub(super) struct Memory {
    /// Directories of control groups (version 2), the process's own first.
    groups: Vec<PathBuf>,
}

impl Memory {
    /// The limits of a process.
    pub(super) fn of(pid: u32) -> Self {
        let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        Self { groups: groups(&text, Path::new("/sys/fs/cgroup")) }
    }

    /// Whether less than a twentieth of what is allowed, or of the machine's memory, is left.
    pub(super) fn is_short(&self) -> bool {
        self.groups.iter().any(|group| is_group_short(group))
            || std::fs::read_to_string("/proc/meminfo").is_ok_and(|text| is_machine_short(&text))
    }
}

/// The control group of version 2, and those that it is in.
fn groups(text: &str, root: &Path) -> Vec<PathBuf> {
    let Some(own) = text.lines().find_map(|line| line.strip_prefix("0::/")) else { return Vec::new() };
    // Of another namespace: what is above can't be seen.
    if own.split('/').any(|part| part == "..") {
        return vec![root.to_owned()];
    }
    let own = root.join(own);
    own.ancestors().take_while(|path| path.starts_with(root)).map(Path::to_owned).collect()
}

fn is_group_short(group: &Path) -> bool {
    // A limit that isn't there, or is "max", is none.
    let number = |name| std::fs::read_to_string(group.join(name)).ok()?.trim().parse::<u64>().ok();
    let Some(current) = number("memory.current") else { return false };
    ["memory.max", "memory.high"].into_iter().filter_map(number).any(|limit| current >= limit - limit / LEFT)
}

fn is_machine_short(text: &str) -> bool {
    let number = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|line| line.trim_start_matches(':').split_whitespace().next()?.parse::<u64>().ok())
    };
    match (number("MemTotal"), number("MemAvailable"), number("SwapFree")) {
        (Some(total), Some(available), swap) => available.saturating_add(swap.unwrap_or(0)) < total / LEFT,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_short_when_little_is_left() {
        let text = |available, swap| {
            format!("MemTotal: 1000 kB\nMemAvailable:  {available} kB\nSwapFree: {swap} kB\n")
        };
        assert!(is_machine_short(&text(49, 0)));
        assert!(!is_machine_short(&text(50, 0)) && !is_machine_short(&text(10, 50)));
        assert!(!is_machine_short("") && !is_machine_short("MemTotal: x\nMemAvailable: 1\n"));
    }

    #[test]
    fn a_group_is_short_near_its_own_limit_or_one_above() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("a/b");
        std::fs::create_dir_all(&own).unwrap();
        let groups = groups("1:name=x:/y\n0::/a/b\n", root.path());
        assert_eq!(groups, [own.clone(), root.path().join("a"), root.path().to_owned()]);
        let write = |group: &Path, name: &str, text: &str| std::fs::write(group.join(name), text).unwrap();
        let is_short = || groups.iter().any(|group| is_group_short(group));
        assert!(!is_short());
        write(&own, "memory.current", "949\n");
        write(&own, "memory.max", "max\n");
        assert!(!is_short());
        write(&own, "memory.high", "1000\n");
        assert!(!is_short());
        write(&own, "memory.current", "950\n");
        assert!(is_short());
        write(&own, "memory.high", "max\n");
        assert!(!is_short());
        write(&groups[1], "memory.current", "99\n");
        write(&groups[1], "memory.max", "100\n");
        assert!(is_short());
        assert_eq!(super::groups("0::/../x\n", root.path()), [root.path().to_owned()]);
    }
}

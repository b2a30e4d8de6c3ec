//! Whether memory is about to be used up, before the kernel ends processes for it: by the limits of the control groups
//! that a process is in, and by what the machine has left.

use std::path::{Path, PathBuf};

/// What of a limit is left when it is short: a twentieth.
const LEFT: u64 = 20;

/// What limits a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Memory {
    pid: u32,
}

impl Memory {
    /// The limits of a process.
    pub(super) fn of(pid: u32) -> Self {
        Self { pid }
    }

    /// Whether less than a twentieth of what is allowed, or of the machine's memory, is left.
    pub(super) fn is_short(&self) -> bool {
        // It may be moved from one group to another.
        let text = std::fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).unwrap_or_default();
        groups(&text, Path::new("/sys/fs/cgroup")).iter().any(|group| is_group_short(group))
            || std::fs::read_to_string("/proc/meminfo").is_ok_and(|text| is_machine_short(&text))
    }
}

/// The control groups of version 2 and of version 1 that the process is in, and those that these are in.
fn groups(text: &str, root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else { continue };
        let root = match controllers {
            "" => root.to_owned(),
            // Version 1 has a tree for each controller, or for some together.
            _ if controllers.split(',').any(|controller| controller == "memory") => root.join(controllers),
            _ => continue,
        };
        let path = path.trim_start_matches('/');
        // Of another namespace: what is above can't be seen.
        let own = if path.split('/').any(|part| part == "..") { root.clone() } else { root.join(path) };
        // A container has its own group mounted as the root.
        found.extend(own.ancestors().take_while(|group| group.starts_with(&root)).map(Path::to_owned));
    }
    found
}

/// The files of a control group: what is used, what of that can be given back at once, and the limits.
const VERSIONS: [(&str, &str, &[&str]); 2] = [
    ("memory.current", "inactive_file", &["memory.max", "memory.high"]),
    ("memory.usage_in_bytes", "total_inactive_file", &["memory.limit_in_bytes"]),
];

fn is_group_short(group: &Path) -> bool {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    // A limit that isn't there, or is "max", is none.
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    VERSIONS.iter().any(|(used, cache, limits)| {
        let Some(used) = number(used) else { return false };
        let stat = read("memory.stat").unwrap_or_default();
        let used = used.saturating_sub(field(&stat, cache).unwrap_or(0));
        limits.iter().filter_map(|limit| number(limit)).any(|limit| used >= limit - limit / LEFT)
    })
}

/// The number behind a name at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix([' ', ':']))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Bytes that a control group may still use.
fn left_of(group: &Path) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok();
    let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
    let left = VERSIONS.iter().filter_map(|(used, cache, limits)| {
        let limit = limits.iter().filter_map(|limit| number(limit)).min()?;
        let stat = read("memory.stat").unwrap_or_default();
        Some(limit.saturating_sub(number(used)?.saturating_sub(field(&stat, cache).unwrap_or(0))))
    });
    left.min()
}

/// Bytes that are left for this process: by the control groups that it is in, and of what the machine has, swap space not
/// counted, as its kernel estimates.
pub(crate) fn available_memory() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo").ok();
    let machine = machine.and_then(|text| field(&text, "MemAvailable")?.checked_mul(1024));
    let text = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let groups = groups(&text, Path::new("/sys/fs/cgroup"));
    groups.iter().filter_map(|group| left_of(group)).chain(machine).min()
}

fn is_machine_short(text: &str) -> bool {
    let number = |name| field(text, name);
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
        // Files that were read once are given up before anybody is ended.
        write(&own, "memory.stat", "anon 949\ninactive_file 1\n");
        assert!(!is_short());
        assert_eq!((left_of(&own), left_of(&groups[1])), (Some(51), None));
        write(&groups[1], "memory.current", "99\n");
        write(&groups[1], "memory.max", "100\n");
        assert!(is_short());
    }

    #[test]
    fn groups_of_version_1_count_too() {
        let root = tempfile::tempdir().unwrap();
        let own = root.path().join("memory/a");
        std::fs::create_dir_all(&own).unwrap();
        assert_eq!(groups("4:memory:/a\n2:cpu:/a\n", root.path()), [own.clone(), root.path().join("memory")]);
        assert_eq!(groups("0::/../x\n", root.path()), [root.path().to_owned()]);
        std::fs::write(own.join("memory.usage_in_bytes"), "96\n").unwrap();
        std::fs::write(own.join("memory.limit_in_bytes"), "100\n").unwrap();
        assert!(is_group_short(&own));
        std::fs::write(own.join("memory.limit_in_bytes"), "9223372036854771712\n").unwrap();
        assert!(!is_group_short(&own));
    }
}

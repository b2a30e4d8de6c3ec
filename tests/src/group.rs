//! Control groups with a limit on memory.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A group that goes with the test.
#[derive(Debug)]
pub struct Group {
    path: PathBuf,
    /// The file that says what it uses.
    used: &'static str,
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.path);
    }
}

/// Where a version of control groups is, which controller it has, and what it calls the limit and the use.
const VERSIONS: [(&str, &str, &str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ("/sys/fs/cgroup", "", "memory.max", "memory.current"),
];

impl Group {
    /// A group with a limit, of whichever version is here; nothing where none can be made.
    pub fn new(limit: u64) -> Option<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let own = std::fs::read_to_string("/proc/self/cgroup").ok()?;
        let path = |controller: &str| {
            let line = own.lines().find(|line| line.split(':').nth(1) == Some(controller))?;
            Some(line.splitn(3, ':').nth(2)?.trim_start_matches('/').to_owned())
        };
        let name = format!("grapnel-{}-{}", std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        VERSIONS.into_iter().find_map(|(root, controller, maximum, used)| {
            let path = Path::new(root).join(path(controller)?).join(&name);
            std::fs::create_dir(&path).ok()?;
            let group = Self { path, used };
            std::fs::write(group.path.join(maximum), limit.to_string()).ok().map(|()| group)
        })
    }

    /// Arguments for python3 with which it goes into the group, does what it is told to first, fills the group up to 97
    /// percent of a limit, a MiB at a time, and waits for the end of its input; or goes on at a line of it, until it is ended.
    pub fn filler(&self, limit: u64, first: &str) -> [String; 2] {
        let (group, used) = (self.path.display(), self.path.join(self.used));
        let script = format!(
            "import sys
open('{group}/cgroup.procs', 'w').write('0')
{first}
kept = []
while int(open('{}').read()) < {limit} * 0.97: kept.append(bytearray(1 << 20))
while sys.stdin.readline():
    while True: kept.append(bytearray(1 << 20))",
            used.display()
        );
        ["-c".into(), script]
    }
}

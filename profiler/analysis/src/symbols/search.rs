//! Where files are looked for.

use super::debuginfod::Debuginfod;
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Where distributions keep separate debug files.
const DEBUG_DIR: &str = "/usr/lib/debug";

/// As many as the kernel follows.
const MAX_LINKS: usize = 40;

/// Where to look for files.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SearchPath {
    /// The root directory of the machine that was recorded, or a copy of what matters of it. Nothing outside is
    /// opened for a path in the trace or in one of its files: links and `..` lead no further than here.
    pub sysroot: Option<PathBuf>,
    /// Directories with separate debug files, on this machine.
    pub debug_dirs: Vec<PathBuf>,
    /// Servers that are asked for what isn't found here. None by default.
    pub debuginfod: Option<Debuginfod>,
}

impl Default for SearchPath {
    /// This machine, and what Debian, Fedora and their relatives use: `/usr/lib/debug`.
    fn default() -> Self {
        Self { sysroot: None, debug_dirs: vec![DEBUG_DIR.into()], debuginfod: None }
    }
}

impl SearchPath {
    /// A machine's files below `sysroot`, its debug files among them.
    pub fn of_sysroot(sysroot: PathBuf) -> Self {
        let debug_dir = sysroot.join(&DEBUG_DIR[1..]);
        Self { sysroot: Some(sysroot), debug_dirs: vec![debug_dir], debuginfod: None }
    }

    /// Where a path of the recorded machine leads here. The file need not be there.
    pub(crate) fn local(&self, path: &Path) -> io::Result<PathBuf> {
        match &self.sysroot {
            None => Ok(path.to_owned()),
            Some(root) => below(root, path),
        }
    }

    /// Where a name leads that is in a file of the directory `dir` of this machine.
    pub(crate) fn beside(&self, dir: &Path, name: &Path) -> io::Result<PathBuf> {
        match &self.sysroot {
            Some(root) if name.is_absolute() || dir.starts_with(root) => {
                below(root, &self.recorded(dir).join(name))
            }
            _ => Ok(dir.join(name)),
        }
    }

    /// The path that a file of this machine has on the recorded one.
    pub(crate) fn recorded<'p>(&self, path: &'p Path) -> &'p Path {
        let inside = self.sysroot.as_ref().and_then(|root| path.strip_prefix(root).ok());
        inside.unwrap_or(path)
    }
}

/// Follows a path as a process would whose root directory is `root`.
///
/// Not proof against somebody who changes links meanwhile: those who can write to the root are trusted.
fn below(root: &Path, path: &Path) -> io::Result<PathBuf> {
    let mut ahead: VecDeque<OsString> = parts(path).collect();
    let mut walked = PathBuf::new();
    let mut links = 0;
    while let Some(part) = ahead.pop_front() {
        if part == ".." {
            walked.pop();
            continue;
        }
        let Ok(target) = std::fs::read_link(root.join(&walked).join(&part)) else {
            walked.push(part);
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::other("its path leads through too many links"));
        }
        if target.is_absolute() {
            walked.clear();
        }
        let rest = core::mem::take(&mut ahead);
        ahead = parts(&target).chain(rest).collect();
    }
    Ok(root.join(walked))
}

/// The parts of a path that mean something.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_and_parents_stay_below_the_root() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        std::fs::create_dir_all(root.join("usr/lib")).unwrap();
        std::fs::create_dir_all(root.join("etc/alternatives")).unwrap();
        symlink("usr/lib", root.join("lib")).unwrap();
        symlink("/etc/alternatives/blas", root.join("usr/lib/blas.so")).unwrap();
        symlink("../../usr/lib/libblas.so.3", root.join("etc/alternatives/blas")).unwrap();
        symlink("../../../../../../etc/passwd", root.join("usr/lib/out.so")).unwrap();
        symlink("loop.so", root.join("usr/lib/loop.so")).unwrap();
        for (path, inside) in [
            ("/lib/libc.so.6", "usr/lib/libc.so.6"),
            ("/lib/blas.so", "usr/lib/libblas.so.3"),
            ("/lib/out.so", "etc/passwd"),
            ("/../../etc/shadow", "etc/shadow"),
            ("/lib/./gone/../x", "usr/lib/x"),
        ] {
            assert_eq!(below(root, Path::new(path)).unwrap(), root.join(inside), "{path}");
        }
        assert!(below(root, Path::new("/lib/loop.so")).is_err());
    }

    #[test]
    fn paths_go_to_the_sysroot_and_back() {
        let here = SearchPath::default();
        assert_eq!(here.local(Path::new("/lib/../x")).unwrap(), Path::new("/lib/../x"));
        let there = SearchPath::of_sysroot("/nonexistent/root".into());
        assert_eq!(there.debug_dirs, [Path::new("/nonexistent/root/usr/lib/debug")]);
        assert_eq!(there.recorded(&there.local(Path::new("/lib/x")).unwrap()), Path::new("lib/x"));
        for (dir, name, found) in [
            ("/nonexistent/root/a/b", "../../../x", "/nonexistent/root/x"),
            ("/nonexistent/root/a", "/x", "/nonexistent/root/x"),
            ("/debug/a", "../x", "/debug/a/../x"),
        ] {
            assert_eq!(there.beside(Path::new(dir), Path::new(name)).unwrap(), Path::new(found));
        }
    }
}

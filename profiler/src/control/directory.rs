//! Where the sockets lie: `$XDG_RUNTIME_DIR/grapnel`, or `/tmp/grapnel-UID` where there is no such variable.
//!
//! Others can write to `/tmp`, and may have been there first. So a directory counts only if it is one, and no link, belongs
//! to the user whose id is in its name, and is closed to all others. It is opened once, and what was looked at is what is
//! used: sockets in it are reached through the descriptor.

use super::peer::Peer;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const SUFFIX: &str = ".socket";
/// Of a socket that nobody can be connected to yet.
const UNFINISHED: &str = ".new";

/// Why there is no place for a socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum DirectoryError {
    /// A system call failed.
    #[error("{path}: {error}")]
    System { path: String, error: io::Error },
    /// It is somebody else's, or others can enter it.
    #[error(
        "{path}: is not a directory of user {user} that is closed to others; remove it, or set XDG_RUNTIME_DIR"
    )]
    NotOurs { path: String, user: u32 },
}

/// A directory that was looked at.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    /// Whose it is.
    user: u32,
}

fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Where this user's sockets may be, the place for new ones first.
fn places_of(user: u32) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if user == own_user()
        && let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
        && runtime.is_absolute()
    {
        places.push(runtime.join("grapnel"));
    }
    places.push(PathBuf::from(format!("/tmp/grapnel-{user}")));
    let usual = PathBuf::from(format!("/run/user/{user}/grapnel"));
    if !places.contains(&usual) {
        places.push(usual);
    }
    places
}

/// Users that may have sockets: this one, and for root all others too.
fn users() -> Vec<u32> {
    let own = own_user();
    let mut users = vec![own];
    if own == 0 {
        let names = |path: &str| std::fs::read_dir(path).into_iter().flatten().flatten();
        let runtime = names("/run/user").map(|entry| entry.file_name());
        let temporary = names("/tmp")
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("grapnel-").map(OsString::from));
        users.extend(runtime.chain(temporary).filter_map(|name| name.to_str()?.parse::<u32>().ok()));
        users.sort_unstable();
        users.dedup();
    }
    users
}

impl Directory {
    /// The directory for new sockets, made if it isn't there.
    pub(crate) fn for_new() -> Result<Self, DirectoryError> {
        let (user, mut first) = (own_user(), None);
        for path in places_of(user) {
            // A variable may name what isn't there or is another's, as after `su`.
            let made = create_closed(&path)
                .map_err(|error| DirectoryError::System { path: path.display().to_string(), error })
                .and_then(|()| Self::open(&path, user));
            match made {
                Ok(directory) => return Ok(directory),
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(first.unwrap_or(DirectoryError::NotOurs { path: "/tmp".into(), user }))
    }

    /// All directories with sockets that this user may ask.
    pub(crate) fn all() -> Vec<Self> {
        let places =
            users().into_iter().flat_map(|user| places_of(user).into_iter().map(move |path| (user, path)));
        places.filter_map(|(user, path)| Self::open(&path, user).ok()).collect()
    }

    fn open(path: &Path, user: u32) -> Result<Self, DirectoryError> {
        let text = || path.display().to_string();
        let failed = |error: rustix::io::Errno| DirectoryError::System { path: text(), error: error.into() };
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        let fd = match rustix::fs::open(path, flags, Mode::empty()) {
            Err(rustix::io::Errno::LOOP | rustix::io::Errno::NOTDIR) => {
                return Err(DirectoryError::NotOurs { path: text(), user });
            }
            opened => opened.map_err(failed)?,
        };
        let facts = rustix::fs::fstat(&fd).map_err(failed)?;
        if facts.st_uid != user || facts.st_mode & 0o077 != 0 {
            return Err(DirectoryError::NotOurs { path: text(), user });
        }
        Ok(Self { fd, path: path.to_owned(), user })
    }

    /// The path of an entry, by way of the directory that was looked at. Short enough for a socket's address, too.
    fn inside(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.fd.as_raw_fd()))
    }

    /// The socket of a recording by the process `pid`. It gets its name once it can be connected to.
    pub(crate) fn listen(&self, pid: u32) -> Result<UnixListener, DirectoryError> {
        let (unfinished, name) = (format!("{pid}{UNFINISHED}"), format!("{pid}{SUFFIX}"));
        // Of a process that had this id and was killed.
        let _ = rustix::fs::unlinkat(&self.fd, &unfinished, AtFlags::empty());
        let failed =
            |error| DirectoryError::System { path: self.path.join(&name).display().to_string(), error };
        let listener = UnixListener::bind(self.inside(&unfinished)).map_err(failed)?;
        rustix::fs::renameat(&self.fd, &unfinished, &self.fd, &name).map_err(|error| failed(error.into()))?;
        Ok(listener)
    }

    /// Takes the socket of the process `pid` away.
    pub(crate) fn remove(&self, pid: u32) {
        let _ = rustix::fs::unlinkat(&self.fd, format!("{pid}{SUFFIX}"), AtFlags::empty());
    }

    /// Connects to all sockets in it whose other end is of the same user: a directory's owner may put anybody's there. Those that nobody listens to any more are removed.
    pub(crate) fn connect(&self) -> Vec<(u32, UnixStream)> {
        let entries = std::fs::read_dir(self.inside(".")).into_iter().flatten().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(SUFFIX)?.parse().ok());
        let mut found = Vec::new();
        for pid in pids {
            match connect(&self.inside(&format!("{pid}{SUFFIX}"))) {
                Ok(stream) if is_of(&stream, self.user) => found.push((pid, stream)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => self.remove(pid),
                Err(_) => {}
            }
        }
        found.sort_by_key(|&(pid, _)| pid);
        found
    }
}

/// Connects at once or not at all: one that takes no connections, as when it was stopped, has soon no room for more.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Whether a user listens at the other end.
fn is_of(stream: &UnixStream, user: u32) -> bool {
    Peer::of(stream).is_some_and(|peer| peer.user == user)
}

/// Makes a directory that others can't enter. What has that name already is to be looked at.
fn create_closed(path: &Path) -> io::Result<()> {
    match std::fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn only_a_closed_directory_of_the_right_user_counts() {
        let place = tempfile::tempdir().unwrap();
        let (own, path) = (own_user(), place.path().join("grapnel"));
        std::fs::create_dir(&path).unwrap();
        for (mode, good) in [(0o700, true), (0o750, false), (0o701, false), (0o777, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(Directory::open(&path, own).is_ok(), good, "{mode:o}");
        }
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
        assert!(matches!(Directory::open(&path, own + 1), Err(DirectoryError::NotOurs { .. })));
        let link = place.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(matches!(Directory::open(&link, own), Err(DirectoryError::NotOurs { .. })));
        let file = place.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(matches!(Directory::open(&file, own), Err(DirectoryError::NotOurs { .. })));
    }

    #[test]
    fn the_sockets_of_the_dead_are_removed() {
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let directory = Directory::open(place.path(), own_user()).unwrap();
        let (dead, alive) = (directory.listen(7).unwrap(), directory.listen(8).unwrap());
        drop(dead);
        std::fs::write(place.path().join("notes"), "").unwrap();
        let found: Vec<u32> = directory.connect().into_iter().map(|(pid, _)| pid).collect();
        assert_eq!(found, [8]);
        let mut left: Vec<_> =
            place.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        assert_eq!(left, ["8.socket", "notes"]);
        // Of another user, as if the directory were.
        let other = Directory { user: own_user() + 1, ..directory };
        assert!(other.connect().is_empty());
        drop(alive);
    }

    #[test]
    fn who_takes_no_connections_is_not_waited_for() {
        let place = tempfile::tempdir().unwrap();
        std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
        let directory = Directory::open(place.path(), own_user()).unwrap();
        let silent = directory.listen(7).unwrap();
        rustix::net::listen(&silent, 2).unwrap();
        let mut open = Vec::new();
        // The kernel keeps a bounded number until they are taken.
        while let Some(one) = directory.connect().pop() {
            open.push(one);
            assert!(open.len() < 100, "there is room for all");
        }
        assert!(place.path().join("7.socket").exists());
    }
}

//! What PROGRAM is: found as a shell finds it, and looked at before it is started.
//!
//! # Safety
//! System calls that ask about a path that ends with a zero, and change nothing.

use crate::native::{Header, MACHINE, NAME};
use object::elf::{DT_NEEDED, ET_DYN, ET_EXEC, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use std::ffi::{CString, OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Why PROGRAM can't be run under grapnel.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("{0}: no such program; check the name, or give its path")]
    NotFound(String),
    #[error("{0}: not executable; `chmod +x` it, or name its interpreter in front of it")]
    NotExecutable(String),
    #[error("{0}: is a directory; name the program in it")]
    Directory(String),
    #[error("{path}: {error}")]
    Unreadable { path: String, error: io::Error },
    #[error(
        "{0}: is statically linked, and the agent comes in through the dynamic linker; link it dynamically (-static left out)"
    )]
    Static(String),
    #[error(
        "{0}: is a {other}-bit program, and this grapnel is {own}-bit; build the program for {NAME}",
        other = 96 - usize::BITS,
        own = usize::BITS
    )]
    OtherBits(String),
    #[error("{0}: is not a program for this machine ({NAME}); build it for {NAME}")]
    OtherMachine(String),
    #[error(
        "{0}: is set-uid, set-gid or has file capabilities, and the kernel lets no agent into such programs; run a copy without them (`cp` makes one)"
    )]
    Privileged(String),
    #[error("{path}: its dynamic linker is {linker}, not glibc's; link the program against glibc")]
    OtherLibc { path: String, linker: String },
    #[error(
        "{script}: its interpreter {interpreter} is not there; install it, or mend the script's first line"
    )]
    NoInterpreter { script: String, interpreter: String },
    #[error(
        "{path}: is built with {runtime}, which replaces the allocator and must be loaded before the agent; build it without -fsanitize"
    )]
    Sanitizer { path: String, runtime: String },
    #[error("{0}: is damaged: its headers do not make sense; build or install it anew")]
    Damaged(String),
}

impl ProgramError {
    /// The shell's: 127 for what isn't there, 126 for what can't be run.
    pub(crate) fn exit_code(&self) -> u8 {
        if matches!(self, Self::NotFound(_)) { 127 } else { 126 }
    }
}

/// A program that can be started with the agent in it.
#[derive(Debug)]
pub(crate) struct Program {
    /// What to pass to execve.
    pub(crate) path: PathBuf,
}

/// How many interpreters of interpreters the kernel follows.
const MAX_SCRIPTS: usize = 5;

impl Program {
    /// Finds the program and sees that the agent can go along.
    pub(crate) fn find(name: &OsStr) -> Result<Self, ProgramError> {
        let path = search(name)?;
        let mut looked_at = path.clone();
        for _ in 0..MAX_SCRIPTS {
            match inspect(&looked_at)? {
                Some(interpreter) if !interpreter.exists() => {
                    return Err(ProgramError::NoInterpreter {
                        script: looked_at.display().to_string(),
                        interpreter: interpreter.display().to_string(),
                    });
                }
                Some(interpreter) => looked_at = interpreter,
                None => break,
            }
        }
        Ok(Self { path })
    }

    /// The path for the system call.
    pub(crate) fn c_path(&self) -> Option<CString> {
        CString::new(self.path.as_os_str().as_bytes()).ok()
    }
}

fn is_executable(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: a zero-terminated path; asks, changes nothing.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::X_OK, libc::AT_EACCESS) == 0 }
}

fn search(name: &OsStr) -> Result<PathBuf, ProgramError> {
    let shown = || name.to_string_lossy().into_owned();
    if name.as_bytes().contains(&b'/') {
        return check_file(PathBuf::from(name)).map_err(|error| error(shown()));
    }
    let paths = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut there: Option<fn(String) -> ProgramError> = None;
    for directory in std::env::split_paths(&paths) {
        let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
        match check_file(directory.join(name)) {
            Ok(path) if !name.is_empty() => return Ok(path),
            Ok(_) => {}
            Err(error) => {
                there =
                    there.or((!matches!(error(String::new()), ProgramError::NotFound(_))).then_some(error))
            }
        }
    }
    // As a shell has it: a directory of that name on the way is no reason to say anything else.
    let error = there.filter(|error| !matches!(error(String::new()), ProgramError::Directory(_)));
    Err(error.unwrap_or(ProgramError::NotFound)(shown()))
}

fn check_file(path: PathBuf) -> Result<PathBuf, fn(String) -> ProgramError> {
    match fs::metadata(&path) {
        Err(_) => Err(ProgramError::NotFound),
        Ok(metadata) if metadata.is_dir() => Err(ProgramError::Directory),
        Ok(metadata)
            if !metadata.is_file() || !is_executable(&path) || metadata.permissions().mode() & 0o111 == 0 =>
        {
            Err(ProgramError::NotExecutable)
        }
        Ok(_) => Ok(path),
    }
}

/// The class of files whose words are as long as ours, by the number that `elf.h` has for it.
const CLASS: u8 = if usize::BITS == 64 { 2 } else { 1 };

/// Looks at a file that is to be executed; for a script, returns its interpreter.
fn inspect(path: &Path) -> Result<Option<PathBuf>, ProgramError> {
    let shown = || path.display().to_string();
    let unreadable = |error| ProgramError::Unreadable { path: shown(), error };
    let metadata = fs::metadata(path).map_err(unreadable)?;
    let mut file = match File::open(path) {
        Ok(file) => file,
        // May be run but not read: nothing can be said about it beforehand.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(None),
        Err(error) => return Err(unreadable(error)),
    };
    let mut head = Vec::new();
    file.by_ref().take(64 << 10).read_to_end(&mut head).map_err(unreadable)?;
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|&byte| byte == b'\n').next().unwrap_or(&[]).trim_ascii();
        let interpreter = line.split(|byte| byte.is_ascii_whitespace()).next().unwrap_or(&[]);
        return Ok((!interpreter.is_empty()).then(|| PathBuf::from(OsStr::from_bytes(interpreter))));
    }
    if !head.starts_with(b"\x7fELF") {
        // The kernel refuses it; a shell would run it as a script of its own.
        return Ok(None);
    }
    match head.get(4) {
        Some(&class) if class == CLASS => {}
        Some(1 | 2) => return Err(ProgramError::OtherBits(shown())),
        _ => return Err(ProgramError::Damaged(shown())),
    }
    let damaged = |_| ProgramError::Damaged(shown());
    let header = Header::parse(&*head).map_err(damaged)?;
    let endian = header.endian().map_err(damaged)?;
    if header.e_machine(endian) != MACHINE {
        return Err(ProgramError::OtherMachine(shown()));
    }
    if ![ET_EXEC, ET_DYN].contains(&header.e_type(endian)) {
        return Err(ProgramError::Damaged(shown()));
    }
    let segments = header.program_headers(endian, &*head).map_err(damaged)?;
    let Some(interpreter) = segments.iter().find(|segment| segment.p_type(endian) == PT_INTERP) else {
        return Err(ProgramError::Static(shown()));
    };
    if metadata.mode() & 0o6000 != 0 || has_capabilities(path) {
        return Err(ProgramError::Privileged(shown()));
    }
    let linker = interpreter.data(endian, &*head).unwrap_or(&[]);
    let linker = linker.split(|&byte| byte == 0).next().unwrap_or(&[]);
    let name = linker.rsplit(|&byte| byte == b'/').next().unwrap_or(&[]);
    if !name.starts_with(b"ld-linux") && !name.starts_with(b"ld.so") && !name.starts_with(b"ld64") {
        let linker = String::from_utf8_lossy(linker).escape_debug().to_string();
        return Err(ProgramError::OtherLibc { path: shown(), linker });
    }
    if let Some(runtime) = sanitizer(path) {
        return Err(ProgramError::Sanitizer { path: shown(), runtime });
    }
    Ok(None)
}

/// The sanitizer's runtime among the libraries that a program asks for.
fn sanitizer(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    let data = object::ReadCache::new(file);
    let header = Header::parse(&data).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &data).ok()?;
    let (entries, link) = sections.dynamic(endian, &data).ok()??;
    let strings = sections.strings(endian, &data, link).ok()?;
    let names = entries.iter().filter(|entry| entry.tag(endian) == DT_NEEDED);
    let mut names = names.filter_map(|entry| entry.string(endian, strings).ok());
    let is_sanitizer = |name: &&[u8]| SANITIZERS.iter().any(|prefix| name.starts_with(prefix));
    names.find(is_sanitizer).map(|name| String::from_utf8_lossy(name).into_owned())
}

const SANITIZERS: [&[u8]; 4] = [b"libasan.", b"libtsan.", b"libhwasan.", b"liblsan."];

fn has_capabilities(path: &Path) -> bool {
    let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: zero-terminated strings; a null buffer of size 0 asks for the length only.
    unsafe { libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

//! Going along into the next program: what `execve` and its kin get for an environment.
//!
//! At the start the agent takes its own variables out of the environment, so that the program never sees them;
//! here they are put back for the program that comes next.
//!
//! # Safety
//! The hooks may run in the child of a vfork, on the parent's memory and a small stack, and in a signal handler:
//! a small one is built on the stack, any other in a mapping of its own (`exec/room.rs`). The caller's
//! environment is only read, as the kernel would read it: where it leads to no memory, the call is passed on as it is, and
//! the kernel says so. Another thread may change it meanwhile: what was seen of it once isn't counted on.

mod room;
mod shown;

use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{Function, original, original_as};
use crate::{follow, sandbox, session, sys, tls};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering, fence};
use follow::Next;
use grapnel_trace::shared::{SESSION_VARIABLE, SessionHeader, TEXT_BYTES, session_flags};
use room::Room;
pub(crate) use shown::Parts;

/// `LD_PRELOAD=`, as it stands in front of a value.
pub(crate) const PRELOAD: &[u8] = b"LD_PRELOAD=";

/// The agent's variables, as they go into an environment; made at the start.
#[derive(Debug)]
pub(crate) struct Variables {
    /// `LD_PRELOAD=path`, zero-terminated.
    preload: Vec<u8>,
    /// `GRAPNEL_SESSION=path`, zero-terminated.
    session: Vec<u8>,
}

static VARIABLES: AtomicPtr<Variables> = AtomicPtr::new(ptr::null_mut());

impl Variables {
    fn agent_path(&self) -> Option<&CStr> {
        CStr::from_bytes_with_nul(self.preload.get(PRELOAD.len()..)?).ok()
    }
}

/// Keeps what the next programs are to get.
pub(crate) fn prepare() -> Option<&'static Variables> {
    let header = session::header()?;
    let line = |name: &[u8], text: &grapnel_trace::shared::Text| {
        let mut buffer = [0; TEXT_BYTES];
        let mut line = name.to_vec();
        line.extend_from_slice(text.get(&mut buffer));
        line
    };
    let mut name = SESSION_VARIABLE.as_bytes().to_vec();
    name.push(b'=');
    let variables = Box::leak(Box::new(Variables {
        preload: line(PRELOAD, &header.agent_path),
        session: line(&name, &header.session_path),
    }));
    VARIABLES.store(variables, Ordering::Release);
    Some(variables)
}

/// Takes the agent's variables out of `environment`, in place; the user's own LD_PRELOAD stays.
///
/// The kernel shows the strings to whoever reads `/proc/PID/environ`, so zeroes take the place of their text. They come last, as
/// long as the user has no LD_PRELOAD of its own; the area that is shown then ends before them, if the kernel lets us move its end
/// (`exec/shown.rs`), else in these zeroes. The user's is shown behind zeroes in the place of our part.
///
/// # Safety
/// `environment` is the process's initial one: a null-terminated array of writable strings, which nobody else
/// uses yet. Nobody needs the values of the agent's variables any more.
pub(crate) unsafe fn clean(environment: *mut *mut c_char, variables: &Variables) {
    let path = variables.agent_path().map_or(&[][..], CStr::to_bytes);
    let name = &variables.session[..SESSION_VARIABLE.len() + 1];
    let (mut from, mut to) = (environment, environment);
    // Where the last string ends, and how many bytes before that are zeroes now.
    let (mut end, mut zeroes) = (0, 0);
    // SAFETY: `to` never passes `from`, which ends at the null pointer. What is written lies in the strings.
    unsafe {
        while !(*from).is_null() {
            let mut entry = *from;
            let text = CStr::from_ptr(entry).to_bytes();
            let len = text.len() + 1;
            let mut keep = !text.starts_with(name);
            if let Some(value) = text.strip_prefix(PRELOAD)
                && let Some(rest) = value.strip_prefix(path)
            {
                match rest {
                    [] => keep = false,
                    [b':' | b' ', ..] => {
                        // The name again, right before what was the user's value.
                        let front = entry;
                        entry = entry.add(path.len() + 1);
                        ptr::copy(PRELOAD.as_ptr().cast(), entry, PRELOAD.len());
                        ptr::write_bytes(front, 0, path.len() + 1);
                    }
                    _ => {}
                }
            }
            end = (*from).addr() + len;
            if keep {
                *to = entry;
                to = to.add(1);
                zeroes = 0;
            } else {
                ptr::write_bytes(entry, 0, len);
                zeroes += len;
            }
            from = from.add(1);
        }
        *to = ptr::null_mut();
        skip_to_auxiliary(to.add(1), from.offset_from_unsigned(to));
    }
    // The kernel puts the program's path right behind the environment. Where something else is there, this is none of its.
    if zeroes != 0 && end == sys::path_of_program() {
        shown::move_end(end, end - zeroes);
    }
}

/// Behind the environment, programs find the auxiliary vector, in pairs of words: the words that are left over before it are made some that say nothing.
/// We come by two variables, or by one that is there twice, so that they are pairs.
///
/// # Safety
/// There are so many words at `first`, which nobody uses.
unsafe fn skip_to_auxiliary(first: *mut *mut c_char, words: usize) {
    const AT_IGNORE: usize = 1;
    for pair in (1..words).step_by(2) {
        // SAFETY: the caller's promise.
        unsafe {
            *first.add(pair - 1) = ptr::without_provenance_mut(AT_IGNORE);
            *first.add(pair) = ptr::null_mut();
        }
    }
}

/// Words of environment that may be built on any stack.
const FEW_WORDS: usize = 160;

/// How many bytes of data, and of addresses, a program must be allowed at least to be followed. The smallest with the agent take a
/// quarter of that; the rest is for others' own needs.
const LEAST_DATA: u64 = 16 << 20;
const LEAST_ADDRESSES: u64 = 32 << 20;

/// What the next program gets for an environment.
enum Gets {
    /// The caller's.
    Callers,
    /// The same, and it would be followed if it could be.
    CallersAlone(&'static SessionHeader),
    /// One with the agent's variables.
    Ours(Plan, &'static Variables, &'static SessionHeader),
}

impl Gets {
    /// Decides it, and has the drain stay where it's ours.
    fn decide(environment: Strings, judge: impl FnOnce() -> Next) -> Self {
        // SAFETY: null, or leaked by `prepare`.
        let variables = unsafe { VARIABLES.load(Ordering::Acquire).as_ref() };
        let (Some(variables), Some(header)) = (variables, session::header()) else { return Self::Callers };
        let follow = header.flags.load(Ordering::Relaxed) & session_flags::FOLLOW != 0;
        if !follow || session::is_over(header) {
            return Self::Callers;
        }
        // What the next program will be under can't be told to it.
        if !sandbox::leaves_all() || tls::get().no_clock.get() || !has_room_for_agent() {
            return Self::CallersAlone(header);
        }
        match judge() {
            Next::Refused => return Self::Callers,
            Next::Alone => return Self::CallersAlone(header),
            Next::Followed => {}
        }
        let Some(plan) = Plan::of(environment, variables) else { return Self::Callers };
        // From here on the drain stays for the new program's sake: its loader must find the agent.
        header.execs.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if session::is_over(header)
            || !variables.agent_path().is_some_and(|path| leads_to_agent(path, header))
        {
            header.execs.fetch_sub(1, Ordering::AcqRel);
            return Self::CallersAlone(header);
        }
        Self::Ours(plan, variables, header)
    }
}

/// Whether the agent's path leads to the agent, and can be read. In another `/proc`, as in a container inside one, it may lead to anybody's file.
fn leads_to_agent(path: &CStr, header: &SessionHeader) -> bool {
    let right = [&header.agent_device, &header.agent_inode].map(|word| word.load(Ordering::Relaxed));
    sys::readable(path) && (right == [0; 2] || sys::identity(path) == Some(right))
}

/// Whether the limits of this process, which will be the next program's, leave room for the agent: without, its loader
/// may not come as far as the program.
fn has_room_for_agent() -> bool {
    // Of the kernel's `uapi/asm-generic/resource.h`: their type is another in each libc.
    const RLIMIT_DATA: u32 = 2;
    const RLIMIT_AS: u32 = 9;
    [(RLIMIT_DATA, LEAST_DATA), (RLIMIT_AS, LEAST_ADDRESSES)]
        .into_iter()
        .all(|(which, least)| sys::limit(which).is_none_or(|limit| limit >= least))
}

/// Calls `call` with the environment that the next program is to get.
///
/// # Safety
/// `environment` is null or a null-terminated array of strings, as far as it can be read.
unsafe fn with_environment(
    environment: *const *const c_char,
    saved: &SavedRegisters,
    call_original: usize,
    judge: impl FnOnce() -> Next,
    call: impl Fn(*const *const c_char) -> c_int,
) -> c_int {
    let failed = ptr::without_provenance_mut(usize::MAX);
    let gets = rescued(saved, failed, call_original, || Gets::decide(environment, judge));
    let call = |environment| {
        let filters = sandbox::leave();
        let result = call(environment);
        sandbox::stay(filters);
        result
    };
    let alone = |header: &SessionHeader| {
        header.unfollowed.fetch_add(1, Ordering::Relaxed);
        let result = call(environment);
        // There is no such program.
        header.unfollowed.fetch_sub(1, Ordering::Relaxed);
        result
    };
    let (plan, variables, header) = match gets {
        Gets::Callers => return call(environment),
        Gets::CallersAlone(header) => return alone(header),
        Gets::Ours(plan, variables, header) => (plan, variables, header),
    };
    let build = |memory: *mut usize| {
        // SAFETY: each caller passes room for the plan's words, and the caller's promise.
        rescued(saved, failed, call_original, || unsafe { plan.build(environment, variables, memory) })
    };
    let words = plan.words();
    let result = if words <= FEW_WORDS {
        build([0usize; FEW_WORDS].as_mut_ptr()).map(&call)
    } else {
        let room = Room::new(words);
        room.as_ref().and_then(|room| build(room.words())).map(&call)
    };
    header.execs.fetch_sub(1, Ordering::AcqRel);
    match result {
        None => alone(header),
        // Perhaps for our few bytes.
        // SAFETY: this thread's errno, which the call has just set.
        Some(-1) if unsafe { *sys::errno_location() } == libc::E2BIG => alone(header),
        Some(result) => result,
    }
}

/// What of memory is known to be readable: the page that was asked for last.
#[derive(Debug, Default)]
struct Readable {
    page: Option<usize>,
}

impl Readable {
    /// Whether so many bytes from an address on can be read; no more than a page.
    fn covers(&mut self, start: usize, len: usize) -> bool {
        let Some(last) = start.checked_add(len - 1) else { return false };
        [start, last].into_iter().all(|address| {
            let page = address & !(sys::PAGE - 1);
            if self.page != Some(page) {
                if !sys::is_readable(page) {
                    return false;
                }
                self.page = Some(page);
            }
            true
        })
    }

    /// The text at an address, if all of it can be read.
    fn text<'a>(&mut self, text: *const c_char) -> Option<&'a CStr> {
        let mut at = text.addr();
        loop {
            self.covers(at, 1).then_some(())?;
            let next = (at & !(sys::PAGE - 1)) + sys::PAGE;
            let start = text.wrapping_byte_add(at - text.addr()).cast::<u8>();
            // SAFETY: the page can be read up to its end.
            let bytes = unsafe { core::slice::from_raw_parts(start, next - at) };
            if let Some(end) = bytes.iter().position(|&byte| byte == 0) {
                let len = at - text.addr() + end + 1;
                // SAFETY: the text ends there, and all before can be read.
                let bytes = unsafe { core::slice::from_raw_parts(text.cast(), len) };
                return CStr::from_bytes_with_nul(bytes).ok();
            }
            at = next;
        }
    }

    /// The entry at a place in an array, null where that ends; `None` if it can't be read.
    fn entry(&mut self, array: Strings, index: usize) -> Option<*const c_char> {
        let place = array.wrapping_add(index);
        self.covers(place.addr(), size_of::<usize>()).then_some(())?;
        // SAFETY: that can be read, at any alignment.
        Some(unsafe { place.read_unaligned() })
    }
}

/// Where the texts of the new environment go.
struct Texts {
    next: *mut u8,
    left: usize,
}

impl Texts {
    /// One behind the other; `None` where there is no room.
    ///
    /// # Safety
    /// There are `left` bytes at `next`, and nobody else uses them.
    unsafe fn put(&mut self, bytes: &[u8]) -> Option<*const c_char> {
        self.left = self.left.checked_sub(bytes.len())?;
        let start = self.next;
        // SAFETY: there is room, as was just seen, and the caller's promise.
        unsafe {
            ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len());
            self.next = start.add(bytes.len());
        }
        Some(start.cast_const().cast())
    }
}

/// What the new environment will hold.
#[derive(Debug)]
struct Plan {
    entries: usize,
    /// Whether the user has an LD_PRELOAD. Every one is prefixed: of several the loader takes the last, others the first.
    preloads: bool,
    text: usize,
}

impl Plan {
    /// `None` when the environment is another session's already, or can't be read, or the next program is not to run at all.
    fn of(environment: Strings, variables: &Variables) -> Option<Self> {
        let mut plan = Self { entries: 0, preloads: false, text: variables.session.len() };
        let name = &variables.session[..SESSION_VARIABLE.len() + 1];
        let mut words = Readable::default();
        let mut texts = Readable::default();
        while !environment.is_null() {
            let entry = words.entry(environment, plan.entries)?;
            if entry.is_null() {
                break;
            }
            let entry = texts.text(entry)?.to_bytes();
            // `ldd`: the loader lists the libraries and ends.
            if entry.starts_with(name) || entry.starts_with(b"LD_TRACE_LOADED_OBJECTS=") {
                return None;
            }
            if let Some(value) = entry.strip_prefix(PRELOAD) {
                plan.preloads = true;
                plan.text += variables.preload.len() + 1 + value.len();
            }
            plan.entries += 1;
        }
        if !plan.preloads {
            plan.text += variables.preload.len();
        }
        Some(plan)
    }

    fn words(&self) -> usize {
        self.entries + 3 + self.text.div_ceil(size_of::<usize>())
    }

    /// Builds it from what the caller's is by now: no more entries than were planned for. `None` where there is no room, or nothing to be read.
    ///
    /// # Safety
    /// `memory` has room for [`Plan::words`], and nobody else uses it.
    unsafe fn build(
        &self,
        environment: Strings,
        variables: &Variables,
        memory: *mut usize,
    ) -> Option<Strings> {
        let array: *mut *const c_char = memory.cast();
        let path = &variables.preload[..variables.preload.len() - 1];
        let (mut words, mut seen) = (Readable::default(), Readable::default());
        let (mut len, mut preloads) = (0, false);
        // SAFETY: the array takes entries + 3 words, the text begins behind it and has `text` bytes.
        unsafe {
            let mut texts = Texts { next: memory.add(self.entries + 3).cast(), left: self.text };
            while len < self.entries {
                let mut entry = words.entry(environment, len)?;
                if entry.is_null() {
                    break;
                }
                if let Some(value) = seen.text(entry)?.to_bytes().strip_prefix(PRELOAD) {
                    preloads = true;
                    entry = texts.put(path)?;
                    texts.put(b":")?;
                    texts.put(value)?;
                    texts.put(b"\0")?;
                }
                *array.add(len) = entry;
                len += 1;
            }
            if !preloads {
                *array.add(len) = texts.put(&variables.preload)?;
                len += 1;
            }
            let session = texts.put(&variables.session)?;
            // Twice where the user's LD_PRELOAD stays: see `clean`.
            for _ in 0..=usize::from(preloads) {
                *array.add(len) = session;
                len += 1;
            }
            *array.add(len) = ptr::null();
        }
        Some(array.cast_const())
    }
}

/// What becomes of the program at a path, from a directory.
fn judge(directory: c_int, path: *const c_char) -> Next {
    // What isn't a path is for the kernel to refuse.
    let Some(path) = Readable::default().text(path) else { return Next::Refused };
    follow::judge(directory, path)
}

/// The same, where no path may stand for the directory itself.
fn judge_at(directory: c_int, path: *const c_char, flags: c_int) -> Next {
    const AT_EMPTY_PATH: c_int = 0x1000;
    let is_empty = || path.is_null() || Readable::default().text(path).is_some_and(CStr::is_empty);
    if flags & AT_EMPTY_PATH != 0 && is_empty() {
        return follow::judge_open(directory);
    }
    judge(directory, path)
}

type Strings = *const *const c_char;

stub!(grapnel_agent_execve, execve, 3);
unsafe extern "C" fn execve(
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    saved: &SavedRegisters,
) -> c_int {
    type Call = unsafe extern "C" fn(*const c_char, Strings, Strings) -> c_int;
    let rescue = original(Function::Execve);
    // SAFETY: the caller's call, passed on with an environment that holds what its own does.
    unsafe {
        let call: Call = original_as(Function::Execve);
        with_environment(
            environment,
            saved,
            rescue,
            || judge(libc::AT_FDCWD, path),
            |made| call(path, arguments, made),
        )
    }
}

stub!(grapnel_agent_execveat, execveat, 5);
unsafe extern "C" fn execveat(
    directory: c_int,
    path: *const c_char,
    arguments: Strings,
    environment: Strings,
    flags: c_int,
    saved: &SavedRegisters,
) -> c_int {
    type Call = unsafe extern "C" fn(c_int, *const c_char, Strings, Strings, c_int) -> c_int;
    // SAFETY: as in `execve`.
    unsafe {
        let call: Call = original_as(Function::Execveat);
        with_environment(
            environment,
            saved,
            0,
            || judge_at(directory, path, flags),
            |made| call(directory, path, arguments, made, flags),
        )
    }
}

stub!(grapnel_agent_fexecve, fexecve, 3);
unsafe extern "C" fn fexecve(
    fd: c_int,
    arguments: Strings,
    environment: Strings,
    saved: &SavedRegisters,
) -> c_int {
    type Call = unsafe extern "C" fn(c_int, Strings, Strings) -> c_int;
    let rescue = original(Function::Fexecve);
    // SAFETY: as in `execve`.
    unsafe {
        let call: Call = original_as(Function::Fexecve);
        if environment.is_null() {
            // libc refuses that, where the kernel takes it for an empty one.
            return call(fd, arguments, environment);
        }
        with_environment(
            environment,
            saved,
            rescue,
            || follow::judge_open(fd),
            |made| call(fd, arguments, made),
        )
    }
}

/// The functions to hook, as [`crate::hooks::allocation_functions`] lists its.
pub(crate) fn exec_functions() -> [(&'static [u8], unsafe extern "C" fn(), Function); 3] {
    [
        (b"execve", grapnel_agent_execve, Function::Execve),
        (b"execveat", grapnel_agent_execveat, Function::Execveat),
        (b"fexecve", grapnel_agent_fexecve, Function::Fexecve),
    ]
}

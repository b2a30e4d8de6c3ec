//! Going along into the next program: what `execve` and its kin get for an environment.
//!
//! At the start the agent takes its own variables out of the environment, so that the program never sees them;
//! here they are put back for the program that comes next.
//!
//! # Safety
//! The hooks may run in the child of a vfork, on the parent's memory and a small stack, and in a signal handler:
//! the new environment is built on the stack, or, when it is large, in a mapping of its own. The caller's
//! environment is only read, as the kernel would read it: where it leads to no memory, the call is passed on as it is, and
//! the kernel says so.

use crate::entry::{SavedRegisters, rescued, stub};
use crate::hooks::{Function, original, original_as};
use crate::{follow, sandbox, session, sys, tls};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering, fence};
use grapnel_trace::shared::{SESSION_VARIABLE, TEXT_BYTES, session_flags};

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
/// # Safety
/// `environment` is the process's initial one: a null-terminated array of writable strings, which nobody else
/// uses yet.
pub(crate) unsafe fn clean(environment: *mut *mut c_char, variables: &Variables) {
    let path = variables.agent_path().map_or(&[][..], CStr::to_bytes);
    let name = &variables.session[..SESSION_VARIABLE.len() + 1];
    let (mut from, mut to) = (environment, environment);
    // SAFETY: `to` never passes `from`, which ends at the null pointer.
    unsafe {
        while !(*from).is_null() {
            let mut entry = *from;
            let text = CStr::from_ptr(entry).to_bytes();
            let mut keep = !text.starts_with(name);
            if let Some(value) = text.strip_prefix(PRELOAD)
                && let Some(rest) = value.strip_prefix(path)
            {
                match rest {
                    [] => keep = false,
                    [b':' | b' ', ..] => {
                        // The name again, right before what was the user's value.
                        entry = entry.add(path.len() + 1);
                        ptr::copy(PRELOAD.as_ptr().cast(), entry, PRELOAD.len());
                    }
                    _ => {}
                }
            }
            if keep {
                *to = entry;
                to = to.add(1);
            }
            from = from.add(1);
        }
        *to = ptr::null_mut();
    }
}

/// Words of environment that may be built on any stack, and on one that is not a signal handler's own.
const FEW_WORDS: usize = 160;
const MANY_WORDS: usize = 1024;

/// Calls `call` with the environment that the next program is to get.
///
/// # Safety
/// `environment` is null or a null-terminated array of strings, as far as it can be read.
unsafe fn with_environment(
    environment: *const *const c_char,
    saved: &SavedRegisters,
    call_original: usize,
    can_follow: impl FnOnce() -> bool,
    call: impl Fn(*const *const c_char) -> c_int,
) -> c_int {
    let failed = ptr::without_provenance_mut(usize::MAX);
    let plan = rescued(saved, failed, call_original, || {
        // SAFETY: null, or leaked by `prepare`.
        let variables = unsafe { VARIABLES.load(Ordering::Acquire).as_ref() }?;
        let header = session::header()?;
        let follow = header.flags.load(Ordering::Relaxed) & session_flags::FOLLOW != 0;
        if !follow || session::is_over(header) {
            return None;
        }
        // What the next program will be under can't be told to it.
        if !sandbox::leaves_all() || tls::get().no_clock.get() {
            header.unfollowed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if !can_follow() {
            return None;
        }
        // SAFETY: the caller's promise.
        let plan = unsafe { Plan::of(environment, variables) }?;
        // From here on the drain stays for the new program's sake: its loader must find the agent.
        header.execs.fetch_add(1, Ordering::AcqRel);
        fence(Ordering::SeqCst);
        if session::is_over(header) || !variables.agent_path().is_some_and(sys::readable) {
            header.execs.fetch_sub(1, Ordering::AcqRel);
            header.unfollowed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some((plan, variables, header))
    });
    let call = |environment| {
        let filters = sandbox::leave();
        let result = call(environment);
        sandbox::stay(filters);
        result
    };
    let Some((plan, variables, header)) = plan else { return call(environment) };
    let build = |memory: *mut usize| {
        // SAFETY: each caller passes room for the plan's words, and the caller's promise.
        rescued(saved, failed, call_original, || unsafe { plan.build(environment, variables, memory) })
    };
    let words = plan.words();
    let result = if words <= FEW_WORDS {
        call(build([0usize; FEW_WORDS].as_mut_ptr()))
    } else if words <= MANY_WORDS && !sys::on_signal_stack() {
        call_on_large_frame(build, &call)
    } else {
        call(memory_for(size_of::<usize>() * words).map_or(environment, build))
    };
    header.execs.fetch_sub(1, Ordering::AcqRel);
    // SAFETY: this thread's errno, which the call has just set.
    if result == -1 && unsafe { *sys::errno_location() } == libc::E2BIG {
        // Perhaps for our few bytes.
        return call(environment);
    }
    result
}

/// Memory of this thread's that stays for the next time: in the child of a vfork it is the parent's, which nobody could
/// give back after an exec.
fn memory_for(bytes: usize) -> Option<*mut usize> {
    let kept = &tls::get().environment;
    let (memory, len) = kept.get();
    if len >= bytes {
        return Some(memory.cast());
    }
    if len != 0 {
        sys::unmap(memory, len);
    }
    kept.set((ptr::null_mut(), 0));
    let len = bytes.next_multiple_of(sys::PAGE);
    let memory = sys::map_anonymous(len)?;
    kept.set((memory, len));
    Some(memory.cast())
}

/// Apart, so that only those who need this much of the stack take it.
#[inline(never)]
fn call_on_large_frame(
    build: impl FnOnce(*mut usize) -> *const *const c_char,
    call: &impl Fn(*const *const c_char) -> c_int,
) -> c_int {
    call(build([0usize; MANY_WORDS].as_mut_ptr()))
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
            if bytes.contains(&0) {
                // SAFETY: the text ends there, and all before can be read.
                return Some(unsafe { CStr::from_ptr(text) });
            }
            at = next;
        }
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
    ///
    /// # Safety
    /// `environment` is null or a null-terminated array of strings, as far as it can be read, which nobody changes meanwhile.
    unsafe fn of(environment: *const *const c_char, variables: &Variables) -> Option<Self> {
        let mut plan = Self { entries: 0, preloads: false, text: variables.session.len() };
        let name = &variables.session[..SESSION_VARIABLE.len() + 1];
        let mut words = Readable::default();
        let mut texts = Readable::default();
        while !environment.is_null() {
            let place = environment.wrapping_add(plan.entries);
            words.covers(place.addr(), size_of::<usize>()).then_some(())?;
            // SAFETY: that can be read, at any alignment.
            let entry = unsafe { place.read_unaligned() };
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

    /// # Safety
    /// `memory` has room for [`Plan::words`]; `environment` is the one that was planned for.
    unsafe fn build(
        &self,
        environment: *const *const c_char,
        variables: &Variables,
        memory: *mut usize,
    ) -> *const *const c_char {
        let array: *mut *const c_char = memory.cast();
        let path = &variables.preload[..variables.preload.len() - 1];
        // SAFETY: the array takes entries + 3 words, the text begins behind it and has `text` bytes.
        unsafe {
            let mut text: *mut u8 = memory.add(self.entries + 3).cast();
            let mut put = |bytes: &[u8]| {
                let start = text;
                ptr::copy_nonoverlapping(bytes.as_ptr(), text, bytes.len());
                text = text.add(bytes.len());
                start.cast_const().cast::<c_char>()
            };
            for index in 0..self.entries {
                let mut entry = environment.add(index).read_unaligned();
                if let Some(value) = CStr::from_ptr(entry).to_bytes_with_nul().strip_prefix(PRELOAD) {
                    entry = put(path);
                    put(b":");
                    put(value);
                }
                *array.add(index) = entry;
            }
            let mut len = self.entries;
            if !self.preloads {
                *array.add(len) = put(&variables.preload);
                len += 1;
            }
            *array.add(len) = put(&variables.session);
            *array.add(len + 1) = ptr::null();
        }
        array.cast_const()
    }
}

/// Whether the program at `path` takes the agent. What can't be opened is for the kernel to judge.
fn can_follow(path: *const c_char) -> bool {
    // What isn't a path is for the kernel to refuse.
    let Some(path) = Readable::default().text(path) else { return false };
    let Ok(fd) = sys::open_regular(path) else { return true };
    let answer = follow::can_follow(fd);
    sys::close(fd);
    answer
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
        with_environment(environment, saved, rescue, || can_follow(path), |made| call(path, arguments, made))
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
        with_environment(environment, saved, 0, || true, |made| call(directory, path, arguments, made, flags))
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
        with_environment(
            environment,
            saved,
            rescue,
            || follow::can_follow(fd),
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

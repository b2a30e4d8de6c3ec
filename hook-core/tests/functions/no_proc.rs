//! Processes without `/proc`, and what else the kernel refuses: what goes on working does, and each error tells the cause.

use std::{
    ffi::{CString, c_void},
    path::Path,
};

use grapnel_hook::{
    Doubt, Errno, Error, HookSet, Listener, Liveness, Refusal, Transaction,
    listen::Entry,
    module::{self, Module},
    rebind::{NotWritten, Rebinding},
    symbol,
};

use crate::{
    function, samples,
    security::{answer, begin, in_child, is, load},
};

extern "C" fn plus_100(x: u64) -> u64 {
    x + 100
}

unsafe extern "C" fn enter(_: &mut Entry, _: *mut c_void) {}

fn at(name: &str) -> *const () {
    samples::all().into_iter().find(|s| s.name == name).unwrap().at
}

fn modules() -> Vec<Module> {
    let debug = module::r_debug_of_this_process().unwrap();
    // SAFETY: nothing is loaded or unloaded meanwhile.
    unsafe { module::loaded_modules(debug) }
}

/// This process sees an empty folder for the root of all files.
fn leave_proc(empty: &Path) -> bool {
    let path = CString::new(empty.as_os_str().as_encoded_bytes()).unwrap();
    // SAFETY: changes this child alone. Who isn't root may in a namespace of users of its own.
    let left = unsafe {
        libc::chroot(path.as_ptr()) == 0
            || libc::unshare(libc::CLONE_NEWUSER) == 0 && libc::chroot(path.as_ptr()) == 0
    };
    left && std::fs::File::open("/proc/self/maps").is_err()
}

fn live(target: *const ()) -> Error {
    let mut transaction = Transaction::new().live();
    let id = transaction.replace(target, plus_100 as *const ());
    transaction.prepare().original(id).unwrap_err()
}

/// A listener came and went; what was made for it is asked back.
fn asked() -> Option<Doubt> {
    let mut set = HookSet::new();
    let mut batch = set.begin();
    batch.listen(at("frame"), Listener::new(std::ptr::null_mut()).on_enter(enter));
    // SAFETY: one thread.
    let attached = unsafe { batch.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
    // SAFETY: one thread, which is in nothing that was removed.
    unsafe {
        set.remove(attached, Liveness::SingleThreaded).unwrap();
        set.reclaim(Liveness::Live).doubt
    }
}

fn without_proc() {
    let names = |modules: &[Module]| modules.iter().map(|m| m.name().to_vec()).collect::<Vec<_>>();
    let before = names(&modules());
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("empty");
    std::fs::create_dir_all(&empty).unwrap();
    let works = in_child(|| {
        if !leave_proc(&empty) {
            return None;
        }
        const NONE: Errno = Errno(libc::ENOENT);
        // Objects and their functions are found.
        let modules = modules();
        assert_eq!(names(&modules), before);
        let libc_so = modules.iter().find(|m| m.file_name().starts_with(b"libc.so")).unwrap();
        let getppid = symbol::find(libc_so, b"getppid").unwrap();
        assert_eq!(getppid.pointer(), libc::getppid as *const ());
        // Functions are hooked while one thread runs.
        let mut transaction = Transaction::new();
        transaction.replace(at("frame"), plus_100 as *const ());
        // SAFETY: one thread, and the types agree.
        let mut hook = unsafe { transaction.commit(Liveness::SingleThreaded) }.remove(0).unwrap();
        assert_eq!(function(at("frame"))(1), 101);
        // SAFETY: one thread.
        unsafe { hook.remove(Liveness::SingleThreaded) }.unwrap();
        assert_eq!(function(at("frame"))(1), 2);
        // The others say what they lack.
        if cfg!(target_arch = "x86_64") {
            let error = live(at("frame"));
            assert!(matches!(error, Error::NotLive { refusal: Refusal::NoMaps(NONE), .. }), "{error}");
            assert!(error.to_string().contains("/proc/self/maps") && error.remedy().contains("mount /proc"));
        }
        // SAFETY: the objects are relocated, and the types agree.
        let rebinding = unsafe { Rebinding::find(&modules, b"getppid", plus_100 as *const ()) };
        // SAFETY: as above.
        let report = unsafe { rebinding.unwrap().update(&modules) };
        assert!(!report.failed.is_empty() && report.written == 0, "{report:?}");
        assert!(report.failed.iter().all(|(_, why)| *why == NotWritten::NoMaps(NONE)), "{report:?}");
        let doubt = asked().unwrap();
        assert_eq!(doubt, Doubt::NotAsked(Refusal::NoProc(NONE)));
        assert!(doubt.to_string().contains("/proc/self") && doubt.remedy().contains("mount /proc"));
        Some(true)
    });
    match works {
        Some(works) => assert!(works),
        None => println!("  another root can't be had: a process without /proc was not tried"),
    }
}

/// The kernel refuses one system call.
fn refused(call: libc::c_long, errno: i32, says: impl FnOnce()) {
    let works = in_child(|| {
        let answer_errno = answer(libc::SECCOMP_RET_ERRNO | errno as u32);
        if !begin(&mut [load(0), is(call, 0, 1), answer_errno, answer(libc::SECCOMP_RET_ALLOW)]) {
            return None;
        }
        says();
        Some(true)
    });
    match works {
        Some(works) => assert!(works),
        None => println!("  the kernel has no seccomp"),
    }
}

fn no_handler() {
    refused(libc::SYS_rt_sigaction, libc::EPERM, || {
        const REFUSED: Refusal = Refusal::NoHandler(Errno(libc::EPERM));
        let mut transaction = Transaction::new().live();
        transaction.replace(at("frame"), plus_100 as *const ());
        // SAFETY: the types agree, and no thread has the trap signal blocked.
        let error = unsafe { transaction.commit(Liveness::Live) }.remove(0).unwrap_err();
        assert!(matches!(error, Error::NotLive { refusal: REFUSED, .. }), "{error}");
        assert!(error.to_string().contains("a signal's handler") && error.remedy().contains("rt_sigaction"));
        let doubt = asked().unwrap();
        assert_eq!(doubt, Doubt::NotAsked(REFUSED));
        assert!(doubt.remedy().contains("rt_sigaction"));
    });
}

fn no_signal() {
    let works = in_child(|| {
        extern "C" fn nothing(_: i32) {}
        for signal in 35..=64 {
            // SAFETY: the handler does nothing.
            unsafe { libc::signal(signal, nothing as *const () as usize) };
        }
        let doubt = asked().unwrap();
        assert_eq!(doubt, Doubt::NotAsked(Refusal::NoSignal));
        assert!(doubt.remedy().contains("35 to 64"));
        Some(true)
    });
    assert_eq!(works, Some(true));
}

pub(crate) fn run() {
    println!("what the kernel refuses");
    without_proc();
    no_handler();
    // An emulator has some of the signals for itself.
    if std::env::var_os("GRAPNEL_EMULATED").is_none() {
        no_signal();
    }
}

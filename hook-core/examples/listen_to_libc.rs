//! A library that listens to every function that libc exports, in any program:
//!
//! ```sh
//! cargo build --release -p grapnel-hook --example listen_to_libc
//! LISTEN_TO_LIBC=/tmp/calls LD_PRELOAD=target/release/examples/liblisten_to_libc.so jq . file.json
//! ```
//!
//! The program does what it does without. At its end, the file named by `LISTEN_TO_LIBC` gets a line for the process: how
//! many functions were listened to and how many calls there were; then one for each function that was refused, and why.
//!
//! `LISTEN_TO` is the beginning of another object's name; the empty one is that of the program itself. A program that has
//! other threads, or loads this library while it runs (`dlopen`), takes `LISTEN_LIVE=1`.

use std::{
    ffi::c_void,
    fs::OpenOptions,
    io::Write,
    process,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use grapnel_hook::{
    HookSet, Listener, Liveness, Options,
    listen::{self, Entry, Exit},
    module,
    symbol::{self, SymbolKind},
};

static ENTERED: AtomicU64 = AtomicU64::new(0);
static LEFT: AtomicU64 = AtomicU64::new(0);
static REPORT: OnceLock<String> = OnceLock::new();

unsafe extern "C" fn enter(_: &mut Entry, _: *mut c_void) {
    ENTERED.fetch_add(1, Relaxed);
}

unsafe extern "C" fn leave(_: &mut Exit, _: *mut c_void) {
    LEFT.fetch_add(1, Relaxed);
}

/// Functions whose return can't be listened to: they return twice, or tell by the return address who calls.
fn enter_only(name: &str) -> bool {
    let twice = ["setjmp", "vfork", "getcontext", "swapcontext"];
    let by_caller = ["dlopen", "dlmopen", "dlsym", "dlvsym"];
    twice.iter().any(|part| name.contains(part)) || by_caller.contains(&name)
}

extern "C" fn start() {
    let Some(debug) = module::r_debug_of_this_process() else { return };
    let object = std::env::var("LISTEN_TO").unwrap_or_else(|_| "libc.so".to_owned());
    let live = std::env::var_os("LISTEN_LIVE").is_some();
    // SAFETY: this runs before the program, or in the middle of `dlopen`; nothing else is loaded or unloaded meanwhile.
    let modules = unsafe { module::loaded_modules(debug) };
    let Some(object) = modules.iter().find(|module| module.file_name().starts_with(object.as_bytes())) else {
        return;
    };
    let mut functions = std::collections::BTreeMap::new();
    symbol::for_each(object, &mut |name, symbol| {
        let (address, size) = match symbol.kind {
            SymbolKind::Function => (symbol.addr, Some(symbol.size)),
            // What is really called, whose length the symbol doesn't say.
            // SAFETY: the object is loaded and relocated before this runs.
            SymbolKind::Indirect => (unsafe { symbol.resolve() } as usize, None),
            _ => return,
        };
        functions.entry(address).or_insert((String::from_utf8_lossy(name).into_owned(), size));
    });
    let count = functions.len();
    let mut set = HookSet::new();
    let batch = set.begin();
    let mut batch = if live { batch.live() } else { batch };
    let entered = Listener::new(std::ptr::null_mut()).on_enter(enter);
    for (address, (name, size)) in &functions {
        let listener = if enter_only(name) { entered } else { entered.on_leave(leave) };
        let options = Options { size: *size, ..Options::default() };
        batch.listen_with(*address as *const (), listener, options);
    }
    let liveness = if live { Liveness::Live } else { Liveness::SingleThreaded };
    // SAFETY: this runs before the program, in its only thread, or no thread has the signal of traps blocked; the listeners do
    // nothing that the program notices.
    let results = unsafe { batch.commit(liveness) };
    let hooked = results.iter().filter(|result| result.is_ok()).count();
    let mut report = format!("{hooked} of {count} functions");
    for (result, (name, _)) in results.iter().zip(functions.values()) {
        if let Err(error) = result {
            report += &format!("\nrefused {name}: {error}");
        }
    }
    let _ = REPORT.set(report);
    // For good.
    std::mem::forget(set);
}

extern "C" fn end() {
    let (Some(file), Some(report)) = (std::env::var_os("LISTEN_TO_LIBC"), REPORT.get()) else { return };
    let (entered, left) = (ENTERED.load(Relaxed), LEFT.load(Relaxed));
    let (first, refused) = report.split_once('\n').unwrap_or((report, ""));
    let text = format!(
        "process {}: {first}, {entered} calls, {left} returns, {} missed\n{refused}\n",
        process::id(),
        listen::missed()
    );
    if let Ok(mut file) = OpenOptions::new().append(true).create(true).open(file) {
        // There is no one to tell.
        let _ = file.write_all(text.as_bytes());
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

//! Every function that libc exports, hooked at once with a replacement that passes on, while this process goes on using
//! libc: everything behaves as before, and afterwards libc's text is as before, byte for byte.

#[path = "common/code.rs"]
mod code;
#[path = "common/find.rs"]
mod find;

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::c_void,
    io::Write,
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Instant,
};

use grapnel_hook::{
    Error, HookSet, Listener, Liveness, Options, Transaction,
    listen::{self, Entry, Exit},
    symbol::{self, SymbolKind},
};

/// Room for `jmp [rip + 2]`, two bytes of nothing, and the address.
const STUB: usize = 16;

/// Memory for stubs that pass on to the address in them.
struct Stubs(*mut u8, usize);

impl Stubs {
    fn new(count: usize) -> Self {
        let len = (count * STUB).next_multiple_of(4096);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
        };
        assert_ne!(at, libc::MAP_FAILED);
        Self(at.cast(), len)
    }

    fn at(&self, i: usize) -> *const () {
        self.0.wrapping_add(i * STUB).cast_const().cast()
    }

    fn fill(&self, i: usize, to: *const ()) {
        let mut stub = [0xff, 0x25, 2, 0, 0, 0, 0x0f, 0x0b, 0, 0, 0, 0, 0, 0, 0, 0];
        stub[8..].copy_from_slice(&(to as u64).to_le_bytes());
        // SAFETY: the stub lies in the mapping, which is writable until it is sealed.
        unsafe { std::ptr::copy_nonoverlapping(stub.as_ptr(), self.0.add(i * STUB), STUB) };
    }

    fn seal(&self) {
        // SAFETY: the mapping is this value's.
        assert_eq!(unsafe { libc::mprotect(self.0.cast(), self.1, libc::PROT_READ | libc::PROT_EXEC) }, 0);
    }
}

/// Something of everything: memory, strings, numbers, sorting, files, time, processes, signals.
fn use_libc() -> String {
    let mut out = String::new();
    // SAFETY: the functions are called as their manual pages say.
    unsafe {
        let mut text = [0 as libc::c_char; 200];
        let n = libc::snprintf(
            text.as_mut_ptr(),
            200,
            c"%d %s %.3f %lx".as_ptr(),
            42,
            c"abc".as_ptr(),
            2.5,
            255u64,
        );
        out += &format!("{n} {:?}\n", std::ffi::CStr::from_ptr(text.as_ptr()));
        out += &format!(
            "{} {}\n",
            libc::strtod(c"1.25e3".as_ptr(), std::ptr::null_mut()),
            libc::atoi(c"77".as_ptr())
        );
        extern "C" fn compare(a: *const c_void, b: *const c_void) -> i32 {
            // SAFETY: qsort passes elements of the array.
            unsafe { *a.cast::<i32>() - *b.cast::<i32>() }
        }
        let mut numbers = [5, 3, 9, 1, 7];
        libc::qsort(numbers.as_mut_ptr().cast(), 5, 4, Some(compare));
        out += &format!("{numbers:?}\n");
        let zero = 86400 * 365;
        let mut tm = std::mem::zeroed();
        libc::gmtime_r(&raw const zero, &raw mut tm);
        libc::strftime(text.as_mut_ptr(), 200, c"%Y-%m-%d".as_ptr(), &raw const tm);
        out += &format!("{:?}\n", std::ffi::CStr::from_ptr(text.as_ptr()));
        let mut regex = std::mem::zeroed();
        assert_eq!(libc::regcomp(&raw mut regex, c"a+b".as_ptr(), libc::REG_EXTENDED), 0);
        out +=
            &format!("{}\n", libc::regexec(&raw const regex, c"xxaab".as_ptr(), 0, std::ptr::null_mut(), 0));
        libc::regfree(&raw mut regex);
        let block = libc::realloc(libc::calloc(10, 10), 5000);
        libc::free(block);
        let child = libc::fork();
        if child == 0 {
            libc::_exit(9);
        }
        let mut status = 0;
        libc::waitpid(child, &raw mut status, 0);
        out += &format!("{status:#x}\n");
    }
    let mut child = Command::new("/usr/bin/sort")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("sort runs");
    child.stdin.take().unwrap().write_all(b"b\nc\na\n").unwrap();
    out += &String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    out += &std::thread::spawn(|| format!("{:?}\n", std::env::var("PATH").is_ok())).join().unwrap();
    out + &std::fs::read_to_string("/etc/hostname").unwrap_or_default()
}

fn main() {
    let libc_so = find::module("libc.so");
    let mut functions = BTreeMap::new();
    symbol::for_each(&libc_so, &mut |name, s| {
        let (at, size) = match s.kind {
            SymbolKind::Function => (s.addr, Some(s.size)),
            // What is really called, whose length the symbol doesn't say.
            // SAFETY: libc is loaded and relocated.
            SymbolKind::Indirect => (unsafe { s.resolve() } as usize, None),
            _ => return,
        };
        functions.entry(at).or_insert((String::from_utf8_lossy(name).into_owned(), size));
    });
    let text = libc_so.segments().iter().find(|s| s.execute).unwrap().range.clone();
    let before = code::bytes(text.start as *const (), text.len());
    let expected = use_libc();

    let stubs = Stubs::new(functions.len());
    let start = Instant::now();
    let mut transaction = Transaction::new();
    let ids: Vec<_> = functions
        .iter()
        .enumerate()
        .map(|(i, (at, (_, size)))| {
            let options = Options { size: *size, ..Options::default() };
            transaction.replace_with(*at as *const (), stubs.at(i), options)
        })
        .collect();
    let prepared = transaction.prepare();
    let prepared_in = start.elapsed();
    let mut refused = BTreeMap::<String, BTreeSet<String>>::new();
    for ((i, id), (name, _)) in ids.iter().enumerate().zip(functions.values()) {
        match prepared.original(*id) {
            Ok(original) => stubs.fill(i, original),
            Err(error) => {
                let kind = match &error {
                    Error::Relocation { source, .. } => source.kind().to_owned(),
                    other => format!("{other:?}").split([' ', '(']).next().unwrap_or_default().to_owned(),
                };
                refused.entry(kind).or_default().insert(name.clone());
            }
        }
    }
    stubs.seal();
    let start = Instant::now();
    // SAFETY: one thread; the replacements pass everything on.
    let hooks = unsafe { prepared.commit(Liveness::SingleThreaded) };
    let committed_in = start.elapsed();
    let got = use_libc();
    let mut hooks: Vec<_> = hooks.into_iter().filter_map(Result::ok).collect();
    let start = Instant::now();
    for hook in &mut hooks {
        // SAFETY: one thread.
        unsafe { hook.remove(Liveness::SingleThreaded) }.unwrap();
    }
    let removed_in = start.elapsed();
    assert_eq!(got, expected);
    assert!(code::bytes(text.start as *const (), text.len()) == before, "libc's text is not as before");
    assert_eq!(code::writable_code(), Vec::<String>::new());
    let short = refused.values().map(BTreeSet::len).sum::<usize>();
    println!(
        "{} of {} functions hooked at once; prepared in {prepared_in:?}, committed in {committed_in:?}, removed in {removed_in:?}",
        hooks.len(),
        functions.len()
    );
    for (kind, names) in &refused {
        println!(
            "  {kind}: {} ({})",
            names.len(),
            names.iter().take(6).cloned().collect::<Vec<_>>().join(", ")
        );
    }
    assert!(hooks.len() * 100 > functions.len() * 95, "{short} refused");

    listened(&functions, &expected);
    assert!(code::bytes(text.start as *const (), text.len()) == before, "libc's text is not as before");
}

static ENTERED: AtomicU64 = AtomicU64::new(0);
static LEFT: AtomicU64 = AtomicU64::new(0);

unsafe extern "C" fn enter(call: &mut Entry, _: *mut c_void) {
    ENTERED.fetch_add(1, Relaxed);
    call.set_word(call.registers().rsp);
}

unsafe extern "C" fn leave(call: &mut Exit, _: *mut c_void) {
    LEFT.fetch_add(1, Relaxed);
    assert_eq!(call.word() + 8, call.registers().rsp);
}

/// The same with a listener to entry and return.
fn listened(functions: &BTreeMap<usize, (String, Option<usize>)>, expected: &str) {
    let left_out = |name: &str| {
        let twice = ["setjmp", "vfork", "getcontext", "swapcontext"];
        // They tell by the return address who calls.
        let callers = ["dlopen", "dlmopen", "dlsym", "dlvsym"];
        twice.iter().any(|part| name.contains(part)) || callers.contains(&name)
    };
    let mut set = HookSet::new();
    let mut batch = set.begin();
    let listener = Listener::new(std::ptr::null_mut()).on_enter(enter).on_leave(leave);
    for (at, (_, size)) in functions.iter().filter(|(_, (name, _))| !left_out(name)) {
        let options = Options { size: *size, ..Options::default() };
        batch.listen_with(*at as *const (), listener, options);
    }
    let start = Instant::now();
    let prepared = batch.prepare();
    let prepared_in = start.elapsed();
    // SAFETY: one thread, and functions that return once.
    let results = unsafe { prepared.commit(Liveness::SingleThreaded) };
    let got = use_libc();
    let attached: Vec<_> = results.into_iter().flatten().collect();
    let count = attached.len();
    let mut batch = set.begin();
    for attachment in attached {
        batch.remove(attachment);
    }
    // SAFETY: one thread.
    for result in unsafe { batch.commit(Liveness::SingleThreaded) } {
        result.unwrap();
    }
    assert_eq!(got, expected);
    let (entered, left) = (ENTERED.load(Relaxed), LEFT.load(Relaxed));
    println!(
        "{count} of {} functions listened to at once, prepared in {prepared_in:?}; {entered} calls, {left} returns, {} missed",
        functions.len(),
        listen::missed()
    );
    assert!(count * 100 > functions.len() * 95 && entered > 500 && left > 500);
    // What was called then and never returned: the ends of threads.
    assert!(entered - left < 100 && listen::missed() == 0);
}

//! Looking at code and at mappings.

/// Where a function's code begins: on Arm, bit 0 of its address names its instruction set.
pub(crate) fn start(at: *const ()) -> *const () {
    if cfg!(target_arch = "arm") { (at as usize & !1) as *const () } else { at }
}

/// The bytes of a function.
pub(crate) fn bytes(at: *const (), len: usize) -> Vec<u8> {
    // SAFETY: the tests ask for code that is mapped.
    unsafe { std::slice::from_raw_parts(start(at).cast(), len) }.to_vec()
}

/// The lines of /proc/self/maps that are writable and executable.
pub(crate) fn writable_code() -> Vec<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc is mounted");
    maps.lines()
        .filter(|line| {
            line.split(' ').nth(1).is_some_and(|rights| rights.contains('w') && rights.contains('x'))
        })
        .map(String::from)
        .collect()
}

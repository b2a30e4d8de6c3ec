//! Where the environment ends that the kernel shows of this process, in `/proc/PID/environ`.
//!
//! Moving that end alone takes `CAP_SYS_RESOURCE`. Anybody may set it together with all that is known of where the process has its
//! parts (`PR_SET_MM_MAP`, for those who restore processes), where the kernel is built for that: the others are set to what they are.

use crate::sys;
use core::str;

/// The kernel's `struct prctl_mm_map`.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct Parts {
    start_code: u64,
    end_code: u64,
    start_data: u64,
    end_data: u64,
    start_brk: u64,
    brk: u64,
    start_stack: u64,
    arg_start: u64,
    arg_end: u64,
    env_start: u64,
    env_end: u64,
    auxv: usize,
    auxv_size: u32,
    exe_fd: u32,
}

/// Moves the end, which is at `end`, to an address before it. Where that can't be, all stays as it is.
pub(super) fn move_end(end: usize, to: usize) {
    if sys::end_environment_at(to) {
        return;
    }
    let mut buffer = [0; 1024];
    let Ok(fd) = sys::open(c"/proc/self/stat", libc::O_RDONLY) else { return };
    let len = sys::read_at(fd, &mut buffer, 0);
    sys::close(fd);
    let parts = buffer.get(..len).and_then(parse).zip(sys::program_break());
    let Some((parts, brk)) = parts else { return };
    let is_as_expected = parts.env_end == end as u64 && (parts.env_start..end as u64).contains(&(to as u64));
    if is_as_expected && brk as u64 >= parts.start_brk {
        sys::set_parts(&Parts { brk: brk as u64, env_end: to as u64, ..parts });
    }
}

/// All but the break, of a line of `/proc/PID/stat`.
fn parse(line: &[u8]) -> Option<Parts> {
    // The name, in brackets, may have any bytes in it.
    let behind_name = line.iter().rposition(|&byte| byte == b')')? + 2;
    let text = str::from_utf8(line.get(behind_name..)?).ok()?;
    // By their numbers in proc(5); the name's is 2.
    let field = |number: usize| text.trim_end().split(' ').nth(number - 3)?.parse::<u64>().ok();
    Some(Parts {
        start_code: field(26)?,
        end_code: field(27)?,
        start_data: field(45)?,
        end_data: field(46)?,
        start_brk: field(47)?,
        brk: 0,
        start_stack: field(28)?,
        arg_start: field(48)?,
        arg_end: field(49)?,
        env_start: field(50)?,
        env_end: field(51)?,
        // Both stay as they are.
        auxv: 0,
        auxv_size: 0,
        exe_fd: u32::MAX,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_line() {
        let numbers: Vec<String> = (4..=52).map(|number| (number * 10).to_string()).collect();
        let line = format!("7 (a ) b) R {}\n", numbers.join(" "));
        let parts = parse(line.as_bytes()).expect("all is there");
        let found = [parts.start_code, parts.start_stack, parts.start_brk, parts.arg_start, parts.env_end];
        assert_eq!(found, [260, 280, 470, 480, 510]);
        assert!(parse(b"7 (a) R 1 2 3\n").is_none());
        assert!(parse(b"").is_none());
        // An emulator of another machine shows less.
        if cfg!(target_arch = "x86_64") {
            let own = std::fs::read("/proc/self/stat").expect("a process can read its own");
            let own = parse(&own).expect("all is there");
            assert!(own.start_code < own.end_code && own.env_start < own.env_end, "{own:x?}");
        }
    }
}

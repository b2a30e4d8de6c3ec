//! Where the environment ends that the kernel shows of this process, in `/proc/PID/environ`.
//!
//! Moving that end alone takes `CAP_SYS_RESOURCE`. Anybody may set it together with all that is known of where the process has its
//! parts (`PR_SET_MM_MAP`, for those who restore processes), where the kernel is built for that: the others are set to what they are.

use crate::stat::Stat;
use crate::sys;

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
    let parts = Stat::read().as_ref().and_then(parts_of).zip(sys::program_break());
    let Some((parts, brk)) = parts else { return };
    let is_as_expected = parts.env_end == end as u64 && (parts.env_start..end as u64).contains(&(to as u64));
    if is_as_expected && brk as u64 >= parts.start_brk {
        sys::set_parts(&Parts { brk: brk as u64, env_end: to as u64, ..parts });
    }
}

/// All but the break.
fn parts_of(stat: &Stat) -> Option<Parts> {
    Some(Parts {
        start_code: stat.field(26)?,
        end_code: stat.field(27)?,
        start_data: stat.field(45)?,
        end_data: stat.field(46)?,
        start_brk: stat.field(47)?,
        brk: 0,
        start_stack: stat.field(28)?,
        arg_start: stat.field(48)?,
        arg_end: stat.field(49)?,
        env_start: stat.field(50)?,
        env_end: stat.field(51)?,
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
        let stat = Stat::written(format!("7 (a) R {}\n", numbers.join(" ")).as_bytes()).expect("a line");
        let parts = parts_of(&stat).expect("all is there");
        let found = [parts.start_code, parts.start_stack, parts.start_brk, parts.arg_start, parts.env_end];
        assert_eq!(found, [260, 280, 470, 480, 510]);
        assert!(parts_of(&Stat::written(b"7 (a) R 1 2 3\n").expect("a line")).is_none());
        // An emulator of another machine shows less.
        if cfg!(target_arch = "x86_64") {
            let own = Stat::read().as_ref().and_then(parts_of).expect("all is there");
            assert!(own.start_code < own.end_code && own.env_start < own.env_end, "{own:x?}");
        }
    }
}

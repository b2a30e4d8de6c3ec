//! What the figures were measured on.

use std::process::Command;

fn first_line(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("unknown").trim().to_owned()
}

fn field(file: &str, name: &str) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    line.split_once(':').map_or("unknown", |(_, value)| value.trim()).to_owned()
}

/// Mean number of running processes in the last minute: anything much above zero before the runs is noise.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

/// Today's date, as in 2026-01-31.
pub fn date() -> String {
    first_line("date", &["-u", "+%F"])
}

/// Processor, cores, memory, kernel, libc and the tools' versions, a line each.
pub fn describe(grapnel: &str) -> Vec<String> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let virtual_machine =
        if field("/proc/cpuinfo", "flags").contains("hypervisor") { ", virtual machine" } else { "" };
    vec![
        format!("Processor: {}, {cores} cores{virtual_machine}", field("/proc/cpuinfo", "model name")),
        format!("Memory: {}", field("/proc/meminfo", "MemTotal")),
        format!("Kernel: {}", first_line("uname", &["-sr"])),
        format!("libc: {}", first_line("ldd", &["--version"])),
        format!("heaptrack: {}", first_line("heaptrack", &["--version"])),
        format!("grapnel: {}", first_line(grapnel, &["--version"])),
    ]
}

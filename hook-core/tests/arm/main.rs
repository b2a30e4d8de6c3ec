//! Hooks in a 32-bit Arm process, where A32 and T32 code live side by side. One thread runs.

#[cfg(target_arch = "arm")]
#[path = "../common/cc.rs"]
mod cc;
#[cfg(target_arch = "arm")]
mod compiled;
#[cfg(target_arch = "arm")]
mod heap;
#[cfg(target_arch = "arm")]
mod listeners;
#[cfg(target_arch = "arm")]
mod probes;
#[cfg(target_arch = "arm")]
mod thrown;
#[cfg(target_arch = "arm")]
#[path = "../sets/unwinding.rs"]
mod unwinding;

#[cfg(target_arch = "arm")]
use listeners::{attach, remove};

fn main() {
    #[cfg(target_arch = "arm")]
    {
        compiled::run();
        heap::run();
        listeners::run();
        probes::run();
        unwinding::run();
        thrown::run();
    }
    println!("ok");
}

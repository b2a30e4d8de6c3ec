//! What others see of the code that hooks are made of. One thread runs.

#[cfg(target_arch = "x86_64")]
mod x86_64;

fn main() {
    #[cfg(target_arch = "x86_64")]
    x86_64::run();
}

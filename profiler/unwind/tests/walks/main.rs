//! Walks of real stacks of this process, compared with libgcc's unwinder and with each other.

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "arm", path = "arm.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod native;

mod chosen;
mod common;
mod control;
mod deep;
mod foreign;
mod modules;
mod plain;
#[cfg(not(target_arch = "arm"))]
mod quick;
#[cfg(not(target_arch = "arm"))]
mod quick_hostile;
mod random;
mod tail;
#[cfg(target_arch = "arm")]
mod untabled;

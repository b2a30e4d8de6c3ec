//! The command `grapnel`.
fn main() {}

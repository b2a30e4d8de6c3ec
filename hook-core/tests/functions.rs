//! Hooks on functions of the test program itself, with many kinds of prologue.
fn main() {}

//! Who may be running the code that is patched.

/// What the caller knows about the other threads while code is patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Liveness {
    /// No other thread runs, and no signal handler of this thread runs the functions meanwhile. Every patch is one
    /// write.
    SingleThreaded,
}

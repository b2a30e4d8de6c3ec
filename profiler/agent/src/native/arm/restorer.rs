//! What a handler of a signal returns to: see [`crate::debug`].

/// The flag of an action that names one: none is named, and handlers return to what the kernel gives them.
pub(crate) const SA_RESTORER: usize = 0;

pub(crate) const RESTORER: Option<unsafe extern "C" fn()> = None;

//! What makes the crate a library of its own.
//!
//! # Safety
//! The constructor's entry is the one of [`crate::start`].

#[cfg(not(grapnel_attached))]
use crate::start::grapnel_agent_start;
use crate::{entry, life, session, sys};
use core::fmt::{self, Write};
use core::panic::PanicInfo;
use grapnel_trace::shared::failure;

/// Called by the loader with the arguments and the environment.
#[cfg(not(grapnel_attached))]
#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: unsafe extern "C" fn() = grapnel_agent_start;

/// Text of limited length; what is beyond is left out.
struct Text {
    bytes: [u8; 400],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for (to, from) in self.bytes.iter_mut().skip(self.len).zip(text.bytes()) {
            *to = from;
            self.len += 1;
        }
        Ok(())
    }
}

/// A fault of our own: recording ends, the target goes on as if we had never been there.
#[panic_handler]
fn panic(info: &PanicInfo<'_>) -> ! {
    life::end();
    crate::lock::left();
    // No memory is asked for: its lack may be the fault.
    let mut text = Text { bytes: [0; 400], len: 0 };
    let _ = write!(text, "a fault in the agent: {info}");
    session::report_failure(failure::PANIC, &text.bytes[..text.len]);
    #[cfg(not(grapnel_attached))]
    if crate::debug::is_on() {
        crate::debug::line(format_args!("a fault in the agent: {info}"));
    }
    entry::escape();
    #[cfg(grapnel_attached)]
    crate::attached::give_up_if_starting();
    sys::abort()
}

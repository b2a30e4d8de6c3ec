//! The relocator behind lines: a request is a line of JSON, and so is its answer; or text, for people.
//!
//! `docs/relocate.md` describes both for those who write them.
//!
//! ```
//! use grapnel_lines::{Form, serve};
//!
//! let requests = br#"{"isa":"x86_64","from":"0x1000","to":"0x2000","bytes":"5548 89e5","min_len":1}
//! {"isa":"x86_64","from":"0x1000","to":"0x2000","bytes":"554889e5","min_len":1}"#;
//! let mut answers = Vec::new();
//! let tally = serve(&requests[..], &mut answers, Form::Json)?;
//! assert_eq!((tally.accepted, tally.bad), (1, 1));
//! assert!(answers.starts_with(br#"{"ok":false,"error":{"kind":"bad-request","#));
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]

mod answer;
mod bad;
mod columns;
mod explain;
mod hex;
mod request;
mod serve;

pub use answer::{Answerer, Form, Outcome};
pub use bad::BadRequest;
pub use request::{Answer, Request, number};
pub use serve::{MAX_LINE, Tally, serve};

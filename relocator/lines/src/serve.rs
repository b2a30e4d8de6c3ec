//! Lines in, answers out.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};

use crate::{
    BadRequest,
    answer::{Answerer, Form, Outcome},
};

/// The longest line that is read, in bytes. What is longer is answered without being kept.
pub const MAX_LINE: usize = 256 << 20;

/// How much is read at once.
const INPUT: usize = 256 << 10;

/// How many bytes of answers are collected before they are written, while there is input at hand.
const OUTPUT: usize = 64 << 10;

/// How long a buffer may stay that a line has grown.
const KEPT: usize = 1 << 20;

/// How many requests became what.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Windows that were relocated.
    pub accepted: u64,
    /// Windows that were refused.
    pub refused: u64,
    /// Lines that were no requests.
    pub bad: u64,
}

impl Tally {
    /// Counts one more.
    pub const fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Accepted => self.accepted += 1,
            Outcome::Refused => self.refused += 1,
            Outcome::Bad => self.bad += 1,
        }
    }
}

/// Answers each line of `input` on `output`, in order; blank lines are passed over.
///
/// No answer is held back while more input is waited for: whoever sends one request gets its answer before it sends
/// the next. As long as there is input at hand, answers are collected.
///
/// # Errors
///
/// When reading or writing fails. A line that is no request is no error.
pub fn serve(input: impl Read, output: impl Write, form: Form) -> io::Result<Tally> {
    let mut input = BufReader::with_capacity(INPUT, input);
    let mut server = Server {
        answerer: Answerer::new(form),
        output,
        answers: Vec::with_capacity(OUTPUT + (4 << 10)),
        number: 0,
        tally: Tally::default(),
    };
    // The beginning of a line that goes on behind what was read.
    let mut begun = Vec::new();
    let mut too_long = false;
    loop {
        if input.buffer().is_empty() {
            server.flush()?;
        }
        let chunk = match input.fill_buf() {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            chunk => chunk?,
        };
        if chunk.is_empty() {
            break;
        }
        let Some(end) = memchr::memchr(b'\n', chunk) else {
            too_long |= begun.len() + chunk.len() > MAX_LINE;
            if too_long {
                begun = Vec::new();
            } else {
                begun.extend_from_slice(chunk);
            }
            let read = chunk.len();
            input.consume(read);
            continue;
        };
        if too_long || begun.len() + end > MAX_LINE {
            server.too_long();
        } else if begun.is_empty() {
            server.line(&chunk[..end])?;
        } else {
            begun.extend_from_slice(&chunk[..end]);
            server.line(&begun)?;
        }
        begun.clear();
        begun.shrink_to(KEPT);
        too_long = false;
        input.consume(end + 1);
    }
    if too_long {
        server.too_long();
    } else {
        server.line(&begun)?;
    }
    server.flush()?;
    Ok(server.tally)
}

struct Server<W> {
    answerer: Answerer,
    output: W,
    answers: Vec<u8>,
    number: u64,
    tally: Tally,
}

impl<W: Write> Server<W> {
    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        self.number += 1;
        if line.trim_ascii().is_empty() {
            return Ok(());
        }
        let outcome = self.answerer.line(self.number, line, &mut self.answers);
        self.tally.add(outcome);
        if line.len() > KEPT {
            self.answerer.shrink(KEPT);
        }
        if self.answers.len() >= OUTPUT { self.write() } else { Ok(()) }
    }

    fn too_long(&mut self) {
        self.number += 1;
        let bad = BadRequest::LineTooLong { max: MAX_LINE };
        let outcome = self.answerer.bad(self.number, &bad, &mut self.answers);
        self.tally.add(outcome);
    }

    fn write(&mut self) -> io::Result<()> {
        self.output.write_all(&self.answers)?;
        self.answers.clear();
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.answers.is_empty() {
            self.write()?;
        }
        self.output.flush()
    }
}

//! What is answered.

use data_encoding::HEXLOWER;
use grapnel_relocator::{CodeAddr, Error, MAX_EMITTED, Relocated};
use serde::{Serialize, Serializer, ser::Error as _};

use crate::{BadRequest, Request, explain, request::Answer};

/// How answers are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A line of JSON for each request.
    Json,
    /// Both codes side by side, for people.
    Text {
        /// How many columns there are.
        width: usize,
    },
}

/// What became of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The window was relocated.
    Accepted,
    /// The relocator refused it, which is an answer.
    Refused,
    /// It was no request.
    Bad,
}

/// Answers requests one by one. Buffers are kept from one to the next.
#[derive(Debug)]
pub struct Answerer {
    form: Form,
    bytes: Vec<u8>,
}

impl Answerer {
    /// One that writes answers in this form.
    #[must_use]
    pub const fn new(form: Form) -> Self {
        Self { form, bytes: Vec::new() }
    }

    /// Appends the answer to the line with this number to `out`.
    pub fn line(&mut self, number: u64, line: &[u8], out: &mut Vec<u8>) -> Outcome {
        let mut bytes = std::mem::take(&mut self.bytes);
        let outcome = match Request::parse(line, &mut bytes) {
            Ok(request) => self.request(&request, out),
            Err(bad) => self.bad(number, &bad, out),
        };
        self.bytes = bytes;
        outcome
    }

    /// Appends the answer to a request to `out`.
    pub fn request(&self, request: &Request<'_>, out: &mut Vec<u8>) -> Outcome {
        let answer = request.relocate();
        match self.form {
            Form::Json => match &answer {
                Ok(answer) => accepted(answer, out),
                Err(error) => refused(&error.into(), out),
            },
            Form::Text { width } => explain::answer(request, &answer, width, out),
        }
        if answer.is_ok() { Outcome::Accepted } else { Outcome::Refused }
    }

    /// Appends the answer to a line that is no request to `out`.
    pub fn bad(&self, number: u64, bad: &BadRequest, out: &mut Vec<u8>) -> Outcome {
        match self.form {
            Form::Json => refused(
                &Refusal {
                    kind: BadRequest::KIND,
                    at: None,
                    instruction: None,
                    message: format!("line {number}: {bad}"),
                    remedy: None,
                    line: Some(number),
                },
                out,
            ),
            Form::Text { width } => explain::bad(number, bad, width, out),
        }
        Outcome::Bad
    }

    /// Gives the memory of an unusually long request back.
    pub(crate) fn shrink(&mut self, kept: usize) {
        self.bytes.clear();
        self.bytes.shrink_to(kept);
    }
}

// What the fields of a line mean is said in docs/relocate.md.

#[derive(Serialize)]
struct Accepted<'a> {
    ok: bool,
    consumed: usize,
    #[serde(serialize_with = "hex")]
    bytes: &'a [u8],
    #[serde(serialize_with = "map")]
    map: &'a Relocated,
    #[serde(serialize_with = "clobbers")]
    clobbers: &'a Relocated,
    resumes: bool,
    #[serde(serialize_with = "addresses")]
    landing_pads: &'a [CodeAddr],
}

#[derive(Serialize)]
struct Refused<'a> {
    ok: bool,
    error: &'a Refusal<'a>,
}

#[derive(Serialize)]
struct Refusal<'a> {
    kind: &'a str,
    at: Option<String>,
    instruction: Option<&'a str>,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    line: Option<u64>,
}

impl<'a> From<&'a Error> for Refusal<'a> {
    fn from(error: &'a Error) -> Self {
        Self {
            kind: error.kind(),
            at: Some(error.at().to_string()),
            instruction: error.culprit().map(|culprit| culprit.text.as_str()),
            message: error.to_string(),
            remedy: Some(error.remedy()),
            line: None,
        }
    }
}

fn accepted(Answer { consumed, relocated, .. }: &Answer, out: &mut Vec<u8>) {
    let answer = Accepted {
        ok: true,
        consumed: *consumed,
        bytes: relocated.bytes(),
        map: relocated,
        clobbers: relocated,
        resumes: relocated.resumes(),
        landing_pads: relocated.landing_pads(),
    };
    line(&answer, out);
}

fn refused(error: &Refusal<'_>, out: &mut Vec<u8>) {
    line(&Refused { ok: false, error }, out);
}

fn line(answer: &impl Serialize, out: &mut Vec<u8>) {
    // Writing to memory can't fail, and neither can what is written here.
    let _ = serde_json::to_writer(&mut *out, answer);
    out.push(b'\n');
}

fn hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let mut text = [0; 2 * MAX_EMITTED];
    let text =
        text.get_mut(..2 * bytes.len()).ok_or_else(|| S::Error::custom("more code than there can be"))?;
    serializer.serialize_str(HEXLOWER.encode_mut_str(bytes, text))
}

fn map<S: Serializer>(relocated: &Relocated, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(relocated.map().iter())
}

fn clobbers<S: Serializer>(relocated: &Relocated, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(relocated.clobbers().names())
}

fn addresses<S: Serializer>(addresses: &[CodeAddr], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(addresses.iter().map(CodeAddr::to_string))
}

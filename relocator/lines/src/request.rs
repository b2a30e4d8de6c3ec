//! What is asked for.

use std::{borrow::Cow, collections::BTreeMap, fmt, str};

use grapnel_relocator::{CodeAddr, Error, Isa, Relocated, RelocationPlan, Window, WindowOptions};
use serde::{
    Deserialize, Deserializer,
    de::{self, Visitor},
};
use serde_json::value::RawValue;

use crate::{
    bad::{BadRequest, quoted},
    hex,
};

/// A window to relocate, and where to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    /// The instruction set.
    pub isa: Isa,
    /// The window's address.
    pub from: CodeAddr,
    /// The destination.
    pub to: CodeAddr,
    /// The bytes at `from`, past the window's end.
    pub bytes: &'a [u8],
    /// How long the window must be.
    pub min_len: usize,
    /// What is known of the function.
    pub options: WindowOptions,
}

/// What became of the window. The window itself has room for many instructions, and is not passed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// How many bytes the window takes.
    pub consumed: usize,
    /// How many of them are instructions, and not padding.
    pub code_len: usize,
    /// The code for the other address.
    pub relocated: Relocated,
}

impl<'a> Request<'a> {
    /// Reads a line. The bytes of the code are put into `bytes`.
    ///
    /// # Errors
    ///
    /// If it is no request.
    pub fn parse(line: &[u8], bytes: &'a mut Vec<u8>) -> Result<Self, BadRequest> {
        // The parser would take a list of values for a structure too.
        if line.trim_ascii_start().first() != Some(&b'{') {
            return Err(BadRequest::NotAnObject);
        }
        let fields: Fields<'_> = serde_json::from_slice(line)?;
        let isa = fields.isa.text("isa")?;
        let isa = isa.parse().map_err(|_| BadRequest::UnknownIsa { found: quoted(isa) })?;
        let from = CodeAddr(fields.from.number("from", line)?);
        let to = CodeAddr(fields.to.number("to", line)?);
        let min_len = length(fields.min_len.number("min_len", line)?);
        let extent = fields.extent.map(|extent| extent.number("extent", line)).transpose()?.map(length);
        let flag = |value: Option<Value<'_>>, name, default| value.map_or(Ok(default), |v| v.flag(name));
        let usual = WindowOptions::default();
        let options = WindowOptions {
            extent,
            allow_padding: flag(fields.padding, "padding", usual.allow_padding)?,
            entry: flag(fields.entry, "entry", usual.entry)?,
            shadow_stack: flag(fields.shadow_stack, "shadow_stack", usual.shadow_stack)?,
        };
        Self::new(isa, (from, to), fields.bytes.text("bytes")?, min_len, options, bytes)
    }

    /// A request whose parts are known. The bytes that `code` spells are put into `bytes`.
    ///
    /// # Errors
    ///
    /// If there is no code, it is no hex, or the addresses can't be those of code.
    pub fn new(
        isa: Isa,
        (from, to): (CodeAddr, CodeAddr),
        code: &str,
        min_len: usize,
        options: WindowOptions,
        bytes: &'a mut Vec<u8>,
    ) -> Result<Self, BadRequest> {
        if min_len == 0 {
            return Err(BadRequest::NoLength);
        }
        for (field, address) in [("from", from), ("to", to)] {
            check_address(isa, field, address.0)?;
        }
        hex::decode(code, bytes)?;
        Ok(Self { isa, from, to, bytes, min_len, options })
    }

    /// Decodes the window and relocates it.
    ///
    /// # Errors
    ///
    /// The relocator's refusal.
    pub fn relocate(&self) -> Result<Answer, Error> {
        let window = self.window()?;
        let relocated = RelocationPlan::new(&window)?.emit(self.to)?;
        Ok(Answer { consumed: window.len(), code_len: window.code_len(), relocated })
    }
}

impl Request<'_> {
    /// Where the function's length is not known, it is taken to go on if a window that ends with its first exit would be
    /// too short: the bytes are there.
    fn window(&self) -> Result<Window, Error> {
        let decode = |options| Window::decode_with(self.isa, self.from, self.bytes, self.min_len, options);
        match decode(self.options) {
            Err(Error::EndsEarly { culprit, short_by }) if self.options.extent.is_none() => {
                let all = WindowOptions { extent: Some(GOES_ON), ..self.options };
                decode(all).map_err(|_| Error::EndsEarly { culprit, short_by })
            }
            decoded => decoded,
        }
    }
}

/// The length of a function whose end is nowhere near.
const GOES_ON: usize = 1 << 30;

/// What is longer than all memory is as long as all memory.
fn length(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

fn check_address(isa: Isa, field: &'static str, value: u64) -> Result<(), BadRequest> {
    if matches!(isa, Isa::A32 | Isa::T32) && value > u64::from(u32::MAX) {
        return Err(BadRequest::Beyond32Bits { field, value, isa });
    }
    let alignment = match isa {
        Isa::X86_64 => 1,
        Isa::T32 if value % 2 == 1 => return Err(BadRequest::ThumbBit { field, value }),
        Isa::T32 => 2,
        Isa::Aarch64 | Isa::A32 => 4,
    };
    if value.is_multiple_of(alignment) {
        Ok(())
    } else {
        Err(BadRequest::Misaligned { field, value, isa, alignment })
    }
}

/// The whole number that `text` is: decimal, or hex behind `0x`.
#[must_use]
pub fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // The standard library takes a sign.
    if digits.starts_with('+') { None } else { u64::from_str_radix(digits, radix).ok() }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    #[serde(borrow)]
    isa: Value<'a>,
    #[serde(borrow)]
    from: Value<'a>,
    #[serde(borrow)]
    to: Value<'a>,
    #[serde(borrow)]
    bytes: Value<'a>,
    #[serde(borrow)]
    min_len: Value<'a>,
    #[serde(borrow)]
    extent: Option<Value<'a>>,
    #[serde(borrow)]
    padding: Option<Value<'a>>,
    #[serde(borrow)]
    entry: Option<Value<'a>>,
    #[serde(borrow)]
    shadow_stack: Option<Value<'a>>,
}

/// What a field holds. Which type it must have is said where its name is known.
enum Value<'a> {
    Null,
    Flag(bool),
    Unsigned(u64),
    /// Below 0, above 2^64-1, or with a fraction or an exponent.
    OtherNumber,
    Text(Cow<'a, str>),
}

impl Value<'_> {
    fn text(&self, field: &'static str) -> Result<&str, BadRequest> {
        match self {
            Self::Text(text) => Ok(text),
            _ => Err(self.wrong(field, "text")),
        }
    }

    fn flag(&self, field: &'static str) -> Result<bool, BadRequest> {
        match self {
            Self::Flag(flag) => Ok(*flag),
            _ => Err(self.wrong(field, "true or false")),
        }
    }

    /// `line` is where the field is from.
    fn number(&self, field: &'static str, line: &[u8]) -> Result<u64, BadRequest> {
        let found = match self {
            Self::Unsigned(value) => return Ok(*value),
            Self::Text(text) => match number(text) {
                Some(value) => return Ok(value),
                None => quoted(text),
            },
            Self::OtherNumber => quoted(&written(line, field).unwrap_or_default()),
            _ => return Err(self.wrong(field, "a number")),
        };
        Err(BadRequest::Number { field, found })
    }

    fn wrong(&self, field: &'static str, expected: &'static str) -> BadRequest {
        let found = match self {
            Self::Null => "null",
            Self::Flag(_) => "true or false",
            Self::Unsigned(_) | Self::OtherNumber => "a number",
            Self::Text(_) => "text",
        };
        BadRequest::WrongType { field, found, expected }
    }
}

/// A field's value as it is written: the parser rounds numbers.
fn written(line: &[u8], field: &str) -> Option<String> {
    let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(line).ok()?;
    fields.get(field).map(|value| value.get().to_owned())
}

impl<'de: 'a, 'a> Deserialize<'de> for Value<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(OfValue)
    }
}

struct OfValue;

impl<'de> Visitor<'de> for OfValue {
    type Value = Value<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, text, true or false")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Value<'de>, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Value<'de>, E> {
        Ok(Value::Flag(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Value<'de>, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_i64<E: de::Error>(self, _: i64) -> Result<Value<'de>, E> {
        Ok(Value::OtherNumber)
    }

    fn visit_f64<E: de::Error>(self, _: f64) -> Result<Value<'de>, E> {
        Ok(Value::OtherNumber)
    }

    fn visit_borrowed_str<E: de::Error>(self, value: &'de str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Borrowed(value)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Value<'de>, E> {
        Ok(Value::Text(Cow::Owned(value.to_owned())))
    }
}

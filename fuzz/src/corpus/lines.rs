//! Windows as JSON lines, in the format of what `grapnel relocate` reads.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
};

use flate2::read::MultiGzDecoder;
use grapnel_relocator::{CodeAddr, Isa};
use serde_json::Value;

use super::{CorpusError, Function, Library};

/// The windows of an instruction set in a file of lines.
pub(super) fn library(path: &Path, isa: Isa) -> Result<Library, CorpusError> {
    let name = || path.display().to_string();
    let io = |error| CorpusError::Io { path: name(), error };
    let file = File::open(path).map_err(io)?;
    let file: Box<dyn Read> = match path.extension() {
        Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    let mut functions = Vec::new();
    for (number, line) in BufReader::new(file).lines().enumerate() {
        let line = line.map_err(io)?;
        if line.trim().is_empty() {
            continue;
        }
        let function = function(&line, isa);
        let function =
            function.map_err(|error| CorpusError::Line { path: name(), line: number + 1, error })?;
        functions.extend(function);
    }
    Ok(Library { functions, ..Library::default() })
}

/// The window of a line, or `None` if it is of another instruction set.
fn function(line: &str, isa: Isa) -> Result<Option<Function>, String> {
    let line: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let text = |key: &str| line.get(key).and_then(Value::as_str);
    let found = match text("isa").ok_or("it has no \"isa\"")? {
        "arm64" => Isa::Aarch64,
        "arm" => Isa::A32,
        "thumb" => Isa::T32,
        name => name.parse().map_err(|_| format!("there is no instruction set {name}"))?,
    };
    if found != isa {
        return Ok(None);
    }
    let addr = line.get("from").or(line.get("addr")).ok_or("it has no \"from\"")?;
    let addr = address(addr).ok_or("its \"from\" is no address")?;
    let bytes = text("bytes").or(text("code")).ok_or("it has no \"bytes\"")?;
    let bytes = hex(bytes).ok_or("its \"bytes\" are no hexadecimal digits")?;
    let extent = line.get("size").and_then(Value::as_u64).filter(|&size| size > 0);
    Ok(Some(Function { addr: CodeAddr(addr), extent: extent.map(|size| size as usize), bytes }))
}

fn address(value: &Value) -> Option<u64> {
    match value {
        Value::String(text) => match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
        _ => value.as_u64(),
    }
}

fn hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some((digit(high)? << 4 | digit(low)?) as u8));
    bytes.collect::<Option<_>>().filter(|_| rest.is_empty())
}

//! Windows as JSON lines: requests of `grapnel relocate`, read by the code that the command reads them by, and starts of
//! functions.

use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use flate2::read::MultiGzDecoder;
use grapnel_lines::{BadRequest, MAX_LINE, Request, number};
use grapnel_relocator::{CodeAddr, Isa, WindowOptions};
use serde_json::Value;

use super::{CorpusError, Function, Library};

/// How much is taken from a file.
struct Limits {
    /// The longest line.
    line: usize,
    /// All functions together.
    memory: usize,
}

/// A line is as long as the command takes it. A small compressed file can hold any number of them.
const LIMITS: Limits = Limits { line: MAX_LINE, memory: 512 << 20 };

/// What a function takes beyond its bytes, with room to spare.
const OF_FUNCTION: usize = 2 * size_of::<Function>();

/// The windows of an instruction set in a file of lines.
pub(super) fn library(path: &Path, isa: Isa) -> Result<Library, CorpusError> {
    let name = || path.display().to_string();
    let io = |error| CorpusError::Io { path: name(), error };
    let file = File::open(path).map_err(io)?;
    let file: Box<dyn Read> = match path.extension() {
        Some(extension) if extension == "gz" => Box::new(MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    let functions = read(&mut BufReader::new(file), isa, &LIMITS).map_err(|fault| match fault {
        Fault::Io(error) => io(error),
        Fault::Line(line, error) => CorpusError::Line { path: name(), line, error },
    })?;
    Ok(Library { functions, ..Library::default() })
}

/// Why lines are no list of windows.
#[derive(Debug)]
enum Fault {
    Io(io::Error),
    /// The line of this number, and what is wrong with it.
    Line(usize, String),
}

fn read(input: &mut impl BufRead, isa: Isa, limits: &Limits) -> Result<Vec<Function>, Fault> {
    let (mut functions, mut memory, mut line) = (Vec::new(), 0, Vec::new());
    for number in 1.. {
        let fault = |error| Fault::Line(number, error);
        line.clear();
        // With its end, or one byte too much.
        let mut rest = input.by_ref().take(limits.line as u64 + 1);
        if rest.read_until(b'\n', &mut line).map_err(Fault::Io)? == 0 {
            break;
        }
        if line.len() > limits.line && line.last() != Some(&b'\n') {
            return Err(fault(BadRequest::LineTooLong { max: limits.line }.to_string()));
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        let Some(function) = function(&line, isa).map_err(fault)? else { continue };
        memory += function.bytes.len() + OF_FUNCTION;
        if memory > limits.memory {
            let max = limits.memory >> 20;
            return Err(fault(format!("the list takes more than {max} MiB of memory up to here; split it")));
        }
        functions.push(function);
    }
    Ok(functions)
}

/// The window of a line, or `None` if it is of another instruction set.
fn function(line: &[u8], isa: Isa) -> Result<Option<Function>, String> {
    let value: Value = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    let request = match value.get("to") {
        Some(_) => Request::parse(line, &mut bytes),
        None => match start(&value, isa)? {
            Some((addr, code, options)) => Request::new(isa, (addr, addr), code, 1, options, &mut bytes),
            None => return Ok(None),
        },
    };
    let Request { isa: found, from, options, .. } = request.map_err(|bad| bad.to_string())?;
    let WindowOptions { extent, entry, .. } = options;
    Ok((found == isa).then(|| Function { addr: from, extent, entry, bytes: bytes.into() }))
}

/// A function's start: its address, its code and its length, if it is of this instruction set.
fn start(line: &Value, isa: Isa) -> Result<Option<(CodeAddr, &str, WindowOptions)>, String> {
    let field = |names: [&str; 2]| names.into_iter().find_map(|name| line.get(name));
    let text = |names| field(names).and_then(Value::as_str);
    let found = match text(["isa"; 2]).ok_or("it has no \"isa\"")? {
        "arm64" => Isa::Aarch64,
        "arm" => Isa::A32,
        "thumb" => Isa::T32,
        name => name.parse().map_err(|_| format!("there is no instruction set {name}"))?,
    };
    if found != isa {
        return Ok(None);
    }
    let whole = |value: &Value| value.as_u64().or_else(|| number(value.as_str()?));
    let addr = field(["addr", "from"]).ok_or("it has no \"addr\"")?;
    let addr = whole(addr).ok_or("its \"addr\" is no address")?;
    let code = text(["code", "bytes"]).ok_or("it has no \"code\"")?;
    let size = field(["size", "extent"]).map(|size| whole(size).ok_or("its \"size\" is no number"));
    let extent = size.transpose()?.filter(|&size| size > 0);
    let extent = extent.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
    Ok(Some((CodeAddr(addr), code, WindowOptions { extent, ..WindowOptions::default() })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(text: &str, limits: &Limits) -> Result<Vec<Function>, String> {
        read(&mut text.as_bytes(), Isa::X86_64, limits).map_err(|fault| format!("{fault:?}"))
    }

    fn function(addr: u64, extent: Option<usize>, entry: bool) -> Function {
        Function { addr: CodeAddr(addr), extent, entry, bytes: vec![0x55, 0xc3].into() }
    }

    #[test]
    fn requests_are_read_as_the_command_reads_them() {
        let request = |from: &str, rest: &str| {
            format!(r#"{{"isa":"x86_64","from":{from},"to":0,"bytes":"55C3","min_len":"0X2"{rest}}}"#)
        };
        let (hex, other) = (request("\"0X10\"", ""), request("16", r#","extent":"0x2","entry":false"#));
        let of_another = other.replace("x86_64", "aarch64");
        let found = listed(&format!("{hex}\n\n{of_another}\n{other}"), &LIMITS);
        assert_eq!(found, Ok(vec![function(16, None, true), function(16, Some(2), false)]));
        let unknown = listed(&request("16", r#","size":2"#), &LIMITS).unwrap_err();
        assert!(unknown.contains("size"), "{unknown}");
    }

    #[test]
    fn starts_of_functions_are_read() {
        let lines = r#"{"isa":"x86_64","addr":16,"size":2,"code":"55c3","src":"libm.so.6"}
            {"isa":"arm64","addr":16,"size":8,"code":"00000000"}
            {"isa":"x86_64","from":"0X10","bytes":"55c3"}"#;
        assert_eq!(listed(lines, &LIMITS), Ok(vec![function(16, Some(2), true), function(16, None, true)]));
        let odd = listed(r#"{"isa":"x86_64","addr":16,"code":"55c"}"#, &LIMITS);
        assert!(odd.unwrap_err().starts_with("Line(1, "));
    }

    #[test]
    fn long_lines_and_long_lists_are_refused() {
        let line = r#"{"isa":"x86_64","addr":16,"code":"55c3"}"#;
        let limits = |line, functions| Limits { line, memory: functions * (OF_FUNCTION + 2) };
        let lines = format!("{line}\n{line}");
        assert_eq!(listed(&lines, &limits(line.len(), 2)).unwrap().len(), 2);
        let long = listed(&lines, &limits(line.len() - 1, 2)).unwrap_err();
        assert!(long.starts_with("Line(1, ") && long.contains("long"), "{long}");
        let many = listed(&lines, &limits(line.len(), 1)).unwrap_err();
        assert!(many.starts_with("Line(2, ") && many.contains("memory"), "{many}");
    }
}

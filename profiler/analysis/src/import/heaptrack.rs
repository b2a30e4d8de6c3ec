//! heaptrack's files, raw (as its library writes them) and interpreted (as its window opens them), versions 1 to 3.
//!
//! The lines of interpreted files are described where they are written, in [`export`](crate::export). Raw files differ in
//! these:
//!
//! | line | what it is |
//! |---|---|
//! | `x EXECUTABLE`, `m -`, `m MODULE BIAS [ADDRESS SIZE]...` | the program; none of the modules told before are loaded; a module with its segments |
//! | `t PC CALLER` | a frame with the stack that called it |
//! | `+ SIZE STACK ADDRESS`, `- ADDRESS` | a block came, a block went |
//!
//! heaptrack records no threads and takes a `realloc` for a free and an allocation. Its addresses are those of calls. An
//! interpreted file says of a block that goes only its size and stack: which of those that are alike it was is not known, and
//! the last one is taken, as heaptrack does when it looks for temporary ones. Suppressions and resident memory are left
//! out.

use super::lines::{Fields, Lines};
use super::modules::Loaded;
use super::{Damage, ImportError, Imported};
use grapnel_trace::event::node_flags;
use grapnel_trace::heap::HeapEvent;
use grapnel_trace::names::{NamedFrame, Names};
use grapnel_trace::writer::Writer;
use grapnel_trace::{Event, Module, ProcessInfo, Source};
use std::collections::HashMap;
use std::io::{BufRead, Write};

/// The versions of the format that are known; the last has strings with their lengths.
const VERSIONS: std::ops::RangeInclusive<u64> = 1..=SIZED;
const SIZED: u64 = 3;
/// More of anything that has a number than a recording has.
const MAX_COUNT: usize = 1 << 25;
/// All strings of a file together.
const MAX_TEXT: usize = 256 << 20;
/// Blocks of one size and stack that are live at once: what their invented addresses have room for.
const MAX_ALIKE: u32 = 1 << 26;
/// The compression of traces that are written once, at leisure.
const LEVEL: i32 = 3;

const NS_PER_MS: u64 = 1_000_000;

/// Writes a trace of what `input` says, which is not compressed.
///
/// # Errors
/// When the file is of another kind, or reading or writing fails. A file that breaks off is no error: see
/// [`Imported::damage`].
pub fn import(input: impl BufRead, out: impl Write) -> Result<Imported, ImportError> {
    let mut lines = Lines::new(input);
    let first = lines.next().map_err(ImportError::Read)?.unwrap_or_default();
    let sized = check_version(first)?;
    let mut info = ProcessInfo { recorder: recorder(first), ..ProcessInfo::default() };
    // The head: whatever stands before the first thing that has to be written.
    let mut pending = loop {
        let Some(line) = lines.next().map_err(ImportError::Read)? else { break None };
        let mut fields = Fields::new(line, sized);
        match line.first() {
            Some(b'x') => info.executable = fields.string().unwrap_or_default().to_vec(),
            Some(b'X') => {
                info.command = fields.rest().split(|&byte| byte == b' ').map(<[u8]>::to_vec).collect();
            }
            Some(b'A' | b'I' | b'R' | b'S' | b'#') | None => {}
            _ => break Some(line.to_vec()),
        }
    };
    let writer = Writer::new(out, &info, LEVEL)?;
    let mut import = Import::new(writer, info.executable, sized);
    import.writer.push(&Event::Thread { index: 0, tid: 0, name: Vec::new() })?;
    if let Some(line) = pending.take() {
        import.take(&line, lines.number)?;
    }
    while import.imported.damage.is_none() {
        match lines.next() {
            Ok(None) => return import.finish(),
            Ok(Some(line)) => import.take(line, 0)?,
            Err(error) => import.damaged(format!("can't be read: {error}")),
        }
        if let Some(damage) = &mut import.imported.damage {
            damage.line = lines.number;
        }
    }
    import.finish()
}

/// The first line says which version it is: whether strings have their lengths.
fn check_version(first: &[u8]) -> Result<bool, ImportError> {
    let mut fields = Fields::new(first, false);
    let (Some(b"v "), Some(_)) = (first.get(..2), fields.number()) else {
        let found = format!("\"{}\"", first[..first.len().min(16)].escape_ascii());
        return Err(ImportError::NotHeaptrack { found });
    };
    match fields.number() {
        Some(version) if VERSIONS.contains(&version) => Ok(version >= SIZED),
        found => Err(ImportError::Version { found: found.unwrap_or(0) }),
    }
}

/// Who recorded it: heaptrack's version is a number with two digits for each part.
fn recorder(first: &[u8]) -> Vec<u8> {
    let version = Fields::new(first, false).number().unwrap_or(0);
    let [major, minor, patch] = [16, 8, 0].map(|shift| version >> shift & 0xff);
    format!("heaptrack {major}.{minor}.{patch}, imported by grapnel {}", env!("CARGO_PKG_VERSION")).into()
}

/// Why a line could not be taken in.
enum Problem {
    Line(&'static str),
    Write(grapnel_trace::Error),
}

impl From<grapnel_trace::Error> for Problem {
    fn from(error: grapnel_trace::Error) -> Self {
        Self::Write(error)
    }
}

impl From<&'static str> for Problem {
    fn from(what: &'static str) -> Self {
        Self::Line(what)
    }
}

const INCOMPLETE: Problem = Problem::Line("is not complete");
const UNKNOWN: Problem = Problem::Line("names something that was not described before");

/// Blocks of an interpreted file that are alike.
struct Alike {
    size: u64,
    stack: u32,
    live: u32,
}

struct Import<W: Write> {
    writer: Writer<W>,
    sized: bool,
    executable: Vec<u8>,
    imported: Imported,
    ms: u64,
    /// Stacks so far.
    stacks: u32,
    /// Of raw files.
    loaded: Loaded,
    /// Of interpreted files: all strings, and where each ends.
    text: Vec<u8>,
    ends: Vec<usize>,
    /// The module and the address of each place.
    places: Vec<(u32, u64)>,
    /// The modules by their strings.
    modules: HashMap<u32, u32>,
    alike: Vec<Alike>,
}

impl<W: Write> Import<W> {
    fn new(writer: Writer<W>, executable: Vec<u8>, sized: bool) -> Self {
        Self {
            writer,
            sized,
            executable,
            imported: Imported::default(),
            ms: 0,
            stacks: 0,
            loaded: Loaded::default(),
            text: Vec::new(),
            ends: Vec::new(),
            places: Vec::new(),
            modules: HashMap::new(),
            alike: Vec::new(),
        }
    }

    fn damaged(&mut self, what: String) {
        self.imported.damage = Some(Damage { line: 0, what });
    }

    /// Takes in a line; what is wrong with it is noted.
    fn take(&mut self, line: &[u8], number: u64) -> Result<(), ImportError> {
        match self.line(line) {
            Ok(()) => Ok(()),
            Err(Problem::Write(error)) => Err(error.into()),
            Err(Problem::Line(what)) => {
                self.imported.damage = Some(Damage { line: number, what: what.to_owned() });
                Ok(())
            }
        }
    }

    fn finish(self) -> Result<Imported, ImportError> {
        if self.imported.damage.is_none() {
            self.writer.finish(None, self.ms * NS_PER_MS, 0)?;
        } else {
            // Without an end, it is a trace that was cut.
            let mut writer = self.writer;
            writer.flush()?;
        }
        Ok(self.imported)
    }

    fn line(&mut self, line: &[u8]) -> Result<(), Problem> {
        let mut fields = Fields::new(line, self.sized);
        match line.first() {
            Some(b'+') => self.block(&mut fields),
            Some(b'-') => self.block_back(&mut fields),
            Some(b't') => self.frame(&mut fields),
            Some(b'a') => self.alike(&mut fields),
            Some(b'i') => self.place(&mut fields),
            Some(b's') => self.string(&mut fields),
            Some(b'm') => self.module(&mut fields),
            Some(b'c') => self.time(&mut fields),
            Some(b'A' | b'I' | b'R' | b'S' | b'X' | b'#') | None => Ok(()),
            Some(_) => Err("is of an unknown kind".into()),
        }
    }

    fn block(&mut self, fields: &mut Fields<'_>) -> Result<(), Problem> {
        let first = fields.number().ok_or(INCOMPLETE)?;
        let (size, stack, address) = match fields.index() {
            // Size, stack and address, of a raw file.
            Some(stack) => (first, stack, fields.number().ok_or(INCOMPLETE)?),
            None => {
                let (index, alike) = self.alike_at(first)?;
                if alike.live >= MAX_ALIKE {
                    return Err("has more blocks than can be live".into());
                }
                alike.live += 1;
                (alike.size, alike.stack, invented(index, alike.live))
            }
        };
        if stack > self.stacks {
            return Err(UNKNOWN);
        }
        self.imported.allocations += 1;
        let source = Source::Malloc;
        Ok(self.writer.push_heap(&HeapEvent::Alloc { thread: 0, stack, address, size, source })?)
    }

    fn block_back(&mut self, fields: &mut Fields<'_>) -> Result<(), Problem> {
        let first = fields.number().ok_or(INCOMPLETE)?;
        let address = if self.alike.is_empty() {
            first
        } else {
            let (index, alike) = self.alike_at(first)?;
            if (alike.size, alike.live) == (0, 0) {
                // Nothing of no bytes: grapnel's exports keep other lines apart so.
                return Ok(());
            }
            // What is not live is a block from before heaptrack was attached.
            let address = invented(index, alike.live);
            alike.live = alike.live.saturating_sub(1);
            address
        };
        self.imported.frees += 1;
        Ok(self.writer.push_heap(&HeapEvent::Free { thread: 0, address })?)
    }

    fn alike_at(&mut self, index: u64) -> Result<(u64, &mut Alike), Problem> {
        let at = usize::try_from(index).map_err(|_| UNKNOWN)?;
        self.alike.get_mut(at).map(|alike| (index, alike)).ok_or(UNKNOWN)
    }

    fn alike(&mut self, fields: &mut Fields<'_>) -> Result<(), Problem> {
        let size = fields.number().ok_or(INCOMPLETE)?;
        let stack = fields.index().ok_or(INCOMPLETE)?;
        full(self.alike.len())?;
        self.alike.push(Alike { size, stack, live: 0 });
        Ok(())
    }

    fn frame(&mut self, fields: &mut Fields<'_>) -> Result<(), Problem> {
        let what = fields.number().ok_or(INCOMPLETE)?;
        let parent = fields.index().ok_or(INCOMPLETE)?;
        // Only raw files have addresses here, and these come after their modules.
        let (module, pc) = if self.places.is_empty() {
            (self.loaded.at(what), what)
        } else {
            let at = usize::try_from(what).ok().and_then(|place| place.checked_sub(1)).ok_or(UNKNOWN)?;
            *self.places.get(at).ok_or(UNKNOWN)?
        };
        if parent > self.stacks {
            return Err(UNKNOWN);
        }
        full(self.stacks as usize)?;
        self.stacks += 1;
        Ok(self.writer.push(&Event::Node {
            id: self.stacks,
            parent,
            pc,
            module,
            flags: node_flags::EXACT,
        })?)
    }

    fn string(&mut self, fields: &mut Fields<'_>) -> Result<(), Problem> {
        // Without its length, a string goes on to the end of the line.
        let text = if self.sized { fields.string().ok_or(INCOMPLETE)? } else { fields.rest() };
        full(self.ends.len())?;
        if self.text.len() + text.len() > MAX_TEXT {
            return Err("has more text than is kept".into());
        }
        self.text.extend_from_slice(text);
        self.ends.push(self.text.len());
        Ok(())
    }

    /// The string with this number, from 1.
    fn text(&self, index: u32) -> Result<&[u8], Problem> {
        let at = index as usize;
        let end = *at.checked_sub(1).and_then(|at| self.ends.get(at)).ok_or(UNKNOWN)?;
        let start = at.checked_sub(2).map_or(0, |before| self.ends[before]);
        Ok(&self.text[start..end])
    }

    fn place(&mut self, fields: &mut Fields<'_>) -> Result<(), Problem> {
        let address = fields.number().ok_or(INCOMPLETE)?;
        let module = self.module_of(fields.index().ok_or(INCOMPLETE)?)?;
        let mut frames = Vec::new();
        while let Some(function) = fields.index() {
            let named =
                |index| if index == 0 { Ok(Vec::new()) } else { self.text(index).map(<[u8]>::to_vec) };
            let function = named(function)?;
            // The last may be without a file.
            let file = named(fields.index().unwrap_or(0))?;
            let line = fields.index().unwrap_or(0);
            frames.push(NamedFrame { function, file, line });
        }
        full(self.places.len())?;
        self.places.push((module, address));
        if !frames.is_empty() {
            self.writer.push(&Event::Names(Names { module, address, frames }))?;
        }
        Ok(())
    }

    /// The module whose path is this string. Where it lay is not said: its addresses are those of the process.
    fn module_of(&mut self, index: u32) -> Result<u32, Problem> {
        if index == 0 {
            return Ok(0);
        }
        if let Some(&known) = self.modules.get(&index) {
            return Ok(known);
        }
        let path = self.text(index)?.to_vec();
        let id = self.modules.len() as u32 + 1;
        self.modules.insert(index, id);
        self.writer.push(&Event::Module(Module { id, path, ..Module::default() }))?;
        Ok(id)
    }

    fn module(&mut self, fields: &mut Fields<'_>) -> Result<(), Problem> {
        let path = match fields.string().ok_or(INCOMPLETE)? {
            b"-" => {
                self.loaded.clear();
                return Ok(());
            }
            b"x" => self.executable.clone(),
            path => path.to_vec(),
        };
        let bias = fields.number().ok_or(INCOMPLETE)?;
        let mut segments = Vec::new();
        while let Some(address) = fields.number() {
            segments.push((address, fields.number().ok_or(INCOMPLETE)?));
        }
        if let Some(module) = self.loaded.add(&path, bias, &segments)? {
            self.writer.push(&Event::Module(module))?;
        }
        Ok(())
    }

    fn time(&mut self, fields: &mut Fields<'_>) -> Result<(), Problem> {
        let ms = fields.number().ok_or(INCOMPLETE)?;
        let ns = ms.checked_mul(NS_PER_MS).ok_or("has an impossible time")?;
        if ms < self.ms {
            return Err("goes back in time".into());
        }
        self.ms = ms;
        Ok(self.writer.push(&Event::Time(ns))?)
    }
}

fn full(count: usize) -> Result<(), Problem> {
    if count < MAX_COUNT { Ok(()) } else { Err("has more than is kept".into()) }
}

/// An address for the last of so many blocks that are alike; none is 0.
fn invented(index: u64, live: u32) -> u64 {
    (index + 1) << 32 | u64::from(live) << 5
}

//! The tables of stacks, frames, functions and libraries, filled as they are needed.

use super::form::{FrameTable, FuncTable, Lib, ResourceTable, StackTable};
use crate::Analysis;
use crate::export::stack::{NO_STACK, name};
use crate::report::words::harmless;
use crate::stacks::Node;
use crate::symbols::Symbols;
use grapnel_trace::Module;
use std::collections::HashMap;

/// What the profiler calls a library among its resources.
const LIBRARY: u32 = 1;

#[derive(Default)]
pub(super) struct Tables {
    pub(super) strings: Vec<String>,
    known_strings: HashMap<String, u32>,
    pub(super) libs: Vec<Lib>,
    pub(super) resources: Resources,
    pub(super) functions: Functions,
    pub(super) frames: Frames,
    pub(super) stacks: StackRows,
    /// The row of each node's innermost frame.
    of_node: HashMap<u32, u32>,
}

#[derive(Default)]
pub(super) struct Resources {
    names: Vec<u32>,
    /// By module.
    known: HashMap<u32, u32>,
}

#[derive(Default)]
pub(super) struct Functions {
    names: Vec<u32>,
    resources: Vec<i64>,
    files: Vec<Option<u32>>,
    known: HashMap<(u32, i64, Option<u32>), u32>,
}

#[derive(Default)]
pub(super) struct Frames {
    addresses: Vec<i64>,
    depths: Vec<u32>,
    functions: Vec<u32>,
    lines: Vec<Option<u32>>,
    known: HashMap<(i64, u32, u32, Option<u32>), u32>,
}

#[derive(Default)]
pub(super) struct StackRows {
    prefixes: Vec<Option<u32>>,
    frames: Vec<u32>,
}

/// A frame before it has a row.
struct Found<'f> {
    name: &'f str,
    file: Option<&'f str>,
    line: Option<u32>,
    /// How many frames of the same address it is inlined into.
    depth: u32,
}

impl Tables {
    fn string(&mut self, text: &str) -> u32 {
        if let Some(&known) = self.known_strings.get(text) {
            return known;
        }
        let index = self.strings.len() as u32;
        self.strings.push(text.to_owned());
        self.known_strings.insert(text.to_owned(), index);
        index
    }

    /// The row of a stack's leaf.
    pub(super) fn stack(&mut self, analysis: &Analysis, symbols: &mut Symbols<'_>, stack: u32) -> u32 {
        let mut new: Vec<(u32, Node)> = Vec::new();
        let mut at = stack;
        while let Some(node) = analysis.stacks.node(at).filter(|_| !self.of_node.contains_key(&at)) {
            new.push((at, node));
            at = node.parent;
        }
        let mut row = self.of_node.get(&at).copied();
        for (id, node) in new.into_iter().rev() {
            let leaf = self.node(analysis, symbols, &node, row);
            self.of_node.insert(id, leaf);
            row = Some(leaf);
        }
        row.unwrap_or_else(|| {
            let row = self.row(None, None, -1, Found { name: NO_STACK, file: None, line: None, depth: 0 });
            self.of_node.insert(stack, row);
            row
        })
    }

    fn node(
        &mut self,
        analysis: &Analysis,
        symbols: &mut Symbols<'_>,
        node: &Node,
        mut caller: Option<u32>,
    ) -> u32 {
        if let Some(name) = node.mark() {
            return self.row(caller, None, -1, Found { name, file: None, line: None, depth: 0 });
        }
        let module = analysis.modules.get(node.module);
        let resource = module.map(|module| self.resource(module, &analysis.process.machine));
        let address = module.map_or(-1, |module| node.lookup_pc().wrapping_sub(module.bias).cast_signed());
        // Innermost first; the rows go from the outermost.
        for (depth, frame) in (0..).zip(symbols.frames(&analysis.modules, node).iter().rev()) {
            let name = name(analysis, node, frame);
            let file = frame.file().map(harmless);
            let found = Found { name: &name, file: file.as_deref(), line: frame.line(), depth };
            caller = Some(self.row(caller, resource, address, found));
        }
        // There is a frame at least.
        caller.unwrap_or_default()
    }

    fn row(
        &mut self,
        caller: Option<u32>,
        resource: Option<u32>,
        address: i64,
        Found { name, file, line, depth }: Found<'_>,
    ) -> u32 {
        let name = self.string(name);
        let file = file.map(|file| self.string(file));
        let resource = resource.map_or(-1, i64::from);
        let functions = &mut self.functions;
        let function = *functions.known.entry((name, resource, file)).or_insert_with(|| {
            functions.names.push(name);
            functions.resources.push(resource);
            functions.files.push(file);
            functions.names.len() as u32 - 1
        });
        let frames = &mut self.frames;
        let frame = *frames.known.entry((address, depth, function, line)).or_insert_with(|| {
            frames.addresses.push(address);
            frames.depths.push(depth);
            frames.functions.push(function);
            frames.lines.push(line);
            frames.addresses.len() as u32 - 1
        });
        self.stacks.prefixes.push(caller);
        self.stacks.frames.push(frame);
        self.stacks.frames.len() as u32 - 1
    }

    fn resource(&mut self, module: &Module, machine: &[u8]) -> u32 {
        if let Some(&known) = self.resources.known.get(&module.id) {
            return known;
        }
        let path = harmless(&String::from_utf8_lossy(&module.path)).into_owned();
        let file = path.rsplit('/').next().unwrap_or_default().to_owned();
        let name = self.string(&file);
        let hex: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        self.libs.push(Lib {
            name: file.clone(),
            debug_name: file,
            debug_path: path.clone(),
            path,
            breakpad_id: breakpad_id(&module.build_id),
            code_id: (!hex.is_empty()).then_some(hex),
            arch: (!machine.is_empty()).then(|| harmless(&String::from_utf8_lossy(machine)).into_owned()),
        });
        self.resources.names.push(name);
        let index = self.resources.names.len() as u32 - 1;
        self.resources.known.insert(module.id, index);
        index
    }
}

/// The build id as symbol servers have it: its first 16 bytes as a GUID, whose first three fields are little-endian
/// numbers, and an age of 0.
fn breakpad_id(build_id: &[u8]) -> String {
    const ORDER: [usize; 16] = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let byte = |at: usize| build_id.get(at).copied().unwrap_or(0);
    ORDER.into_iter().map(|at| format!("{:02X}", byte(at))).chain(["0".to_owned()]).collect()
}

impl StackRows {
    pub(super) fn form(&self) -> StackTable<'_> {
        StackTable { length: self.frames.len(), prefix: &self.prefixes, frame: &self.frames }
    }
}

impl Frames {
    pub(super) fn form(&self) -> FrameTable<'_> {
        let length = self.addresses.len();
        FrameTable {
            length,
            address: &self.addresses,
            inline_depth: &self.depths,
            category: vec![0; length],
            subcategory: vec![0; length],
            func: &self.functions,
            native_symbol: vec![None; length],
            inner_window_id: vec![0; length],
            line: &self.lines,
            column: vec![None; length],
        }
    }
}

impl Functions {
    pub(super) fn form(&self) -> FuncTable<'_> {
        let length = self.names.len();
        FuncTable {
            length,
            name: &self.names,
            is_js: vec![false; length],
            relevant_for_js: vec![false; length],
            resource: &self.resources,
            file_name: &self.files,
            line_number: vec![None; length],
            column_number: vec![None; length],
        }
    }
}

impl Resources {
    pub(super) fn form(&self) -> ResourceTable<'_> {
        let length = self.names.len();
        ResourceTable {
            length,
            // Each has its library at the same place.
            lib: (0..length as u32).collect(),
            name: &self.names,
            host: vec![None; length],
            r#type: vec![LIBRARY; length],
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_build_id_is_a_guid_and_an_age() {
        let id: Vec<u8> = (1..=20).collect();
        assert_eq!(super::breakpad_id(&id), "0403020106050807090A0B0C0D0E0F100");
        assert_eq!(super::breakpad_id(&[]), "0".repeat(33));
    }
}

//! A profile for pprof, with the names that Go's heap profiles use for what is the same.

use super::profile::{Function, Line, Location, Mapping, Profile, Sample, ValueType};
use super::stack::frames;
use super::{Measure, command};
use crate::Analysis;
use crate::report::words::harmless;
use crate::sites::Site;
use crate::symbols::Symbols;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use std::collections::HashMap;
use std::io::{self, Write};

/// The type and the unit of each measure, in the order of [`VALUES`].
const TYPES: [(&str, &str); 6] = [
    ("alloc_objects", "count"),
    ("alloc_space", "bytes"),
    ("inuse_objects", "count"),
    ("inuse_space", "bytes"),
    ("peak_space", "bytes"),
    ("temporary_objects", "count"),
];

/// The number of the first object that a trace tells of.
const FIRST_MODULE: u32 = 1;

/// What is shown if nothing else is asked for.
const DEFAULT: &str = "peak_space";

/// In a stack's place: sites that are added up. A node's number is smaller.
pub(super) const OTHERS: u32 = u32::MAX;

/// More than 32 bits of anything do not happen, and what does not fit is shown as the most there can be.
pub(super) fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[derive(Default)]
struct Builder {
    profile: Profile,
    strings: HashMap<String, i64>,
    /// By name and file.
    functions: HashMap<(i64, i64), u64>,
    /// By module and address; a place without frames is there as well.
    locations: HashMap<(u32, u64), u64>,
    mappings: HashMap<u32, u64>,
}

impl Builder {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(&known) = self.strings.get(text) {
            return known;
        }
        let index = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.to_owned());
        self.strings.insert(text.to_owned(), index);
        index
    }

    fn value_type(&mut self, name: &str, unit: &str) -> ValueType {
        ValueType { r#type: self.string(name), unit: self.string(unit) }
    }

    /// A location that stands for sites that aren't told apart.
    fn others(&mut self) -> u64 {
        let function_id = self.function("(smaller sites)", "");
        let id = self.profile.location.len() as u64 + 1;
        let line = vec![Line { function_id, line: 0 }];
        self.profile.location.push(Location { id, mapping_id: 0, address: 0, line });
        id
    }

    fn function(&mut self, name: &str, file: &str) -> u64 {
        let system_name = if loses_its_meaning(name) { 0 } else { self.string(name) };
        let (name, filename) = (self.string(name), self.string(&harmless(file)));
        let functions = &mut self.profile.function;
        *self.functions.entry((name, filename)).or_insert_with(|| {
            let id = functions.len() as u64 + 1;
            functions.push(Function { id, name, system_name, filename });
            id
        })
    }

    /// The mapping of a module; 0, which is none, for what lies in no module.
    fn mapping(&mut self, analysis: &Analysis, module: u32) -> u64 {
        if let Some(&known) = self.mappings.get(&module) {
            return known;
        }
        let Some(found) = analysis.modules.get(module) else { return 0 };
        let id = self.profile.mapping.len() as u64 + 1;
        let filename = self.string(&harmless(&String::from_utf8_lossy(&found.path)));
        let hex: String = found.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
        let build_id = self.string(&hex);
        self.profile.mapping.push(Mapping {
            id,
            memory_start: found.range.0,
            memory_limit: found.range.1,
            filename,
            build_id,
            has_functions: true,
            has_filenames: true,
            has_line_numbers: true,
            has_inline_frames: true,
        });
        self.mappings.insert(module, id);
        id
    }

    /// The ids of a stack's locations, leaf first.
    fn locations(&mut self, analysis: &Analysis, symbols: &mut Symbols<'_>, stack: u32) -> Vec<u64> {
        let mut ids = Vec::new();
        // Several frames of one node are one location with several lines; whether it is a new one shows at its first.
        let mut current = None;
        let mut is_new = false;
        frames(analysis, symbols, stack, |node, frame| {
            // A node's frames come together; the next node is another value, also where a function calls itself.
            let this = std::ptr::from_ref(node);
            if current != Some(this) {
                current = Some(this);
                let address = if node.is_frame() { node.lookup_pc() } else { 0 };
                // What is no frame is told apart by its flags.
                let key = match node.pc {
                    0 => (u32::MAX, u64::from(node.flags)),
                    _ => (node.module, address),
                };
                let known = self.locations.get(&key).copied();
                is_new = known.is_none();
                let id = known.unwrap_or(self.profile.location.len() as u64 + 1);
                if is_new {
                    let mapping_id = self.mapping(analysis, node.module);
                    self.profile.location.push(Location { id, mapping_id, address, line: Vec::new() });
                    self.locations.insert(key, id);
                }
                ids.push(id);
            }
            if is_new {
                let function_id = self.function(&frame.name, frame.file.unwrap_or_default());
                let line = Line { function_id, line: i64::from(frame.line.unwrap_or_default()) };
                if let Some(location) = self.profile.location.last_mut() {
                    location.line.push(line);
                }
            }
        });
        ids
    }
}

/// Whether too little of a name is left where `go tool pprof` shows it.
///
/// It leaves out what stands in `<>` and `()` of names that look like C++ and whose name in the symbol table is the same: with
/// `<T as Trait>::f`, `(anonymous namespace)::f` and `operator()` the name itself goes. A name without one in the symbol
/// table stays as it is. The others are shown short, as its users know it, or whole by `-symbolize=demangle=full`.
fn loses_its_meaning(name: &str) -> bool {
    let mut depth = [0_u32; 2];
    let mut short = String::new();
    for c in name.chars() {
        match c {
            '(' => depth[0] += 1,
            '<' => depth[1] += 1,
            ')' => depth[0] = depth[0].saturating_sub(1),
            '>' => depth[1] = depth[1].saturating_sub(1),
            c if depth == [0, 0] => short.push(c),
            _ => {}
        }
    }
    let is_empty = |part: &str| matches!(part.trim_end_matches(" const").trim(), "" | "operator");
    short.len() < name.len() && short.split("::").any(is_empty)
}

pub(super) fn write(out: &mut impl Write, analysis: &Analysis, symbols: &mut Symbols<'_>) -> io::Result<()> {
    let samples = analysis.sites.iter().map(|site| {
        let value = [
            Measure::Allocations.of(site),
            Measure::Allocated.of(site),
            site.live_allocations,
            Measure::Live.of(site),
            Measure::Peak.of(site),
            Measure::Temporary.of(site),
        ];
        (site.stack, value.map(signed).to_vec())
    });
    let when = When {
        unix_ns: analysis.process.started_unix_ns,
        duration_ns: analysis.totals.duration_ns,
        period: None,
    };
    compress(out, &profile(analysis, symbols, (&TYPES, DEFAULT), samples, when))
}

/// Which of Go's heap profiles: they hold the same, and differ in what is shown first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoProfile {
    /// `/debug/pprof/heap`: what is live.
    Heap,
    /// `/debug/pprof/allocs`: what was ever allocated.
    Allocs,
}

/// Of each site its stack, and blocks and bytes: allocated, then live.
pub(super) fn go_samples(
    analysis: &Analysis,
    before: Option<&Analysis>,
) -> impl Iterator<Item = (u32, [i64; 4])> {
    let value = |site: &Site| {
        let value = [site.allocations, site.allocated_bytes, site.live_allocations, site.live_bytes];
        value.map(signed)
    };
    let earlier: HashMap<u32, [i64; 4]> =
        before.iter().flat_map(|before| &before.sites).map(|site| (site.stack, value(site))).collect();
    let is_whole = before.is_none();
    analysis.sites.iter().filter_map(move |site| {
        let (now, then) = (value(site), earlier.get(&site.stack).copied().unwrap_or_default());
        let grown: [i64; 4] = std::array::from_fn(|at| now[at].saturating_sub(then[at]));
        (is_whole || grown.iter().any(|&value| value != 0)).then_some((site.stack, grown))
    })
}

/// The type and the unit of each measure of Go's heap profiles.
pub(super) const GO_TYPES: &[(&str, &str)] = TYPES.split_at(4).0;

/// Writes a profile as Go's own are: allocated and live, objects and bytes, at the moment that the analysis ends at. With an
/// earlier analysis of the same trace, the difference to that; sites without any are left out.
///
/// Those who collect profiles take its time for that of the figures, and one with a duration for a difference: as in Go's,
/// there is none but there.
///
/// # Errors
/// What writing gives.
pub fn write_go(
    mut out: impl Write,
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    profile: GoProfile,
    before: Option<&Analysis>,
) -> io::Result<()> {
    let samples = go_samples(analysis, before).map(|(stack, value)| (stack, value.to_vec()));
    let default = match profile {
        GoProfile::Heap => "inuse_space",
        GoProfile::Allocs => "alloc_space",
    };
    let now = analysis.totals.duration_ns;
    let when = When {
        unix_ns: analysis.process.started_unix_ns.saturating_add(now),
        duration_ns: before.map_or(0, |before| now.saturating_sub(before.totals.duration_ns)),
        period: Some(period(analysis)),
    };
    compress(&mut out, &self::profile(analysis, symbols, (GO_TYPES, default), samples, when))
}

/// The mean of the bytes between two allocations that were recorded. Figures stand for themselves whatever it is.
pub(super) fn period(analysis: &Analysis) -> i64 {
    analysis.sampling.map_or(1, |sampling| signed(sampling.mean))
}

/// Which time a profile is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct When {
    /// Since 1970.
    pub(super) unix_ns: u64,
    /// Of what was counted over a time.
    pub(super) duration_ns: u64,
    /// How many bytes lie between two allocations that were recorded, for those who name profiles by that.
    pub(super) period: Option<i64>,
}

/// A profile of samples: a stack each, and a value of each type.
pub(super) fn profile(
    analysis: &Analysis,
    symbols: &mut Symbols<'_>,
    (types, default): (&[(&str, &str)], &str),
    samples: impl Iterator<Item = (u32, Vec<i64>)>,
    when: When,
) -> Profile {
    let mut builder = Builder::default();
    // The first string is the empty one.
    builder.string("");
    for (name, unit) in types {
        let value = builder.value_type(name, unit);
        builder.profile.sample_type.push(value);
    }
    // pprof names the profile after its first mapping. The program is the first object that was loaded.
    builder.mapping(analysis, FIRST_MODULE);
    for (stack, value) in samples {
        let location_id = match stack {
            OTHERS => vec![builder.others()],
            _ => builder.locations(analysis, symbols, stack),
        };
        builder.profile.sample.push(Sample { location_id, value });
    }
    let comment = builder.string(&command(analysis));
    builder.profile.comment.push(comment);
    builder.profile.default_sample_type = builder.string(default);
    builder.profile.time_nanos = signed(when.unix_ns);
    builder.profile.duration_nanos = signed(when.duration_ns);
    if let Some(period) = when.period {
        builder.profile.period_type = Some(builder.value_type("space", "bytes"));
        builder.profile.period = period;
    }
    builder.profile
}

/// Writes a profile as files and services have it.
pub(super) fn compress(out: &mut impl Write, profile: &Profile) -> io::Result<()> {
    let mut compressed = GzEncoder::new(out, Compression::default());
    compressed.write_all(&profile.encode_to_vec())?;
    compressed.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_that_pprof_would_cut_to_nothing_are_known() {
        for name in [
            "<alloc::vec::Vec<T> as core::ops::Drop>::drop",
            "<lambda>",
            "<>",
            "(anonymous namespace)::leaky(int)",
            "store::Less::operator()(int, int) const",
            "operator<(A const&, B const&)",
            "f::<T>::{closure#0}::<U>",
        ] {
            assert!(super::loses_its_meaning(name), "{name}");
        }
        for name in
            ["main", "", "std::vector<int>::push_back(int&&)", "store::Bucket::grow(unsigned long)", "f(int)"]
        {
            assert!(!super::loses_its_meaning(name), "{name}");
        }
    }
}

//! The objects of a processed profile, as far as they are written. Their names are the profiler's
//! (github.com/firefox-devtools/profiler, `src/types/profile.ts`). Tables are columns of equal length.

use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};

/// A list of nothing.
#[derive(Debug, Default)]
pub(super) struct Empty;

impl Serialize for Empty {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_seq(Some(0))?.end()
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct File<'f> {
    pub(super) meta: Meta<'f>,
    pub(super) libs: &'f [Lib],
    pub(super) pages: Empty,
    pub(super) profiler_overhead: Empty,
    pub(super) counters: [Counter<'f>; 1],
    pub(super) threads: [Thread<'f>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Meta<'f> {
    categories: [Category; 1],
    debug: bool,
    extensions: Extensions,
    interval: u64,
    preprocessed_profile_version: u32,
    process_type: u32,
    product: &'f str,
    start_time: f64,
    symbolicated: bool,
    paused_ranges: Empty,
    version: u32,
    uses_only_one_stack_type: bool,
    source_code_is_not_on_searchfox: bool,
    marker_schema: Empty,
    importer: &'static str,
}

impl<'f> Meta<'f> {
    pub(super) fn new(product: &'f str, start_time: f64, interval: u64) -> Self {
        Self {
            categories: [Category { name: "Other", color: "grey", subcategories: ["Other"] }],
            debug: false,
            extensions: Extensions::default(),
            interval,
            preprocessed_profile_version: 55,
            process_type: 0,
            product,
            start_time,
            symbolicated: true,
            paused_ranges: Empty,
            version: 24,
            uses_only_one_stack_type: true,
            source_code_is_not_on_searchfox: true,
            marker_schema: Empty,
            importer: "grapnel",
        }
    }
}

#[derive(Serialize)]
struct Category {
    name: &'static str,
    color: &'static str,
    subcategories: [&'static str; 1],
}

#[derive(Default, Serialize)]
struct Extensions {
    length: usize,
    #[serde(rename = "baseURL")]
    base_url: Empty,
    id: Empty,
    name: Empty,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lib {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) debug_name: String,
    pub(super) debug_path: String,
    pub(super) breakpad_id: String,
    pub(super) code_id: Option<String>,
    pub(super) arch: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Counter<'f> {
    pub(super) name: &'static str,
    pub(super) category: &'static str,
    pub(super) description: &'static str,
    pub(super) pid: &'f str,
    pub(super) main_thread_index: u32,
    pub(super) samples: CounterSamples,
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CounterSamples {
    pub(super) length: usize,
    pub(super) count: Vec<i64>,
    pub(super) time_deltas: Vec<f64>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Thread<'f> {
    pub(super) name: &'static str,
    pub(super) process_name: &'f str,
    pub(super) is_main_thread: bool,
    pub(super) pid: &'f str,
    pub(super) tid: &'f str,
    pub(super) register_time: f64,
    pub(super) unregister_time: f64,
    pub(super) process_startup_time: f64,
    pub(super) process_shutdown_time: f64,
    pub(super) process_type: &'static str,
    pub(super) paused_ranges: Empty,
    pub(super) show_markers_in_timeline: bool,
    pub(super) markers: Markers,
    pub(super) samples: Samples,
    pub(super) native_symbols: NativeSymbols,
    pub(super) native_allocations: Allocations,
    pub(super) stack_table: StackTable<'f>,
    pub(super) frame_table: FrameTable<'f>,
    pub(super) func_table: FuncTable<'f>,
    pub(super) resource_table: ResourceTable<'f>,
    pub(super) string_array: &'f [String],
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Markers {
    length: usize,
    category: Empty,
    data: Empty,
    name: Empty,
    phase: Empty,
    start_time: Empty,
    end_time: Empty,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Samples {
    length: usize,
    weight_type: &'static str,
    stack: Empty,
    time_deltas: Empty,
    weight: Empty,
}

impl Default for Samples {
    fn default() -> Self {
        Self { length: 0, weight_type: "samples", stack: Empty, time_deltas: Empty, weight: Empty }
    }
}

#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct NativeSymbols {
    length: usize,
    address: Empty,
    function_size: Empty,
    lib_index: Empty,
    name: Empty,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Allocations {
    pub(super) length: usize,
    pub(super) time: Vec<u64>,
    pub(super) weight: Vec<i64>,
    weight_type: &'static str,
    pub(super) stack: Vec<u32>,
    pub(super) memory_address: Vec<u64>,
    pub(super) thread_id: Vec<u32>,
}

impl Default for Allocations {
    fn default() -> Self {
        Self {
            length: 0,
            time: Vec::new(),
            weight: Vec::new(),
            weight_type: "bytes",
            stack: Vec::new(),
            memory_address: Vec::new(),
            thread_id: Vec::new(),
        }
    }
}

#[derive(Serialize)]
pub(super) struct StackTable<'f> {
    pub(super) length: usize,
    pub(super) prefix: &'f [Option<u32>],
    pub(super) frame: &'f [u32],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FrameTable<'f> {
    pub(super) length: usize,
    /// In the library's file; -1 where there is none.
    pub(super) address: &'f [i64],
    pub(super) inline_depth: &'f [u32],
    pub(super) category: Vec<u32>,
    pub(super) subcategory: Vec<u32>,
    pub(super) func: &'f [u32],
    pub(super) native_symbol: Vec<Option<u32>>,
    #[serde(rename = "innerWindowID")]
    pub(super) inner_window_id: Vec<u32>,
    pub(super) line: &'f [Option<u32>],
    pub(super) column: Vec<Option<u32>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct FuncTable<'f> {
    pub(super) length: usize,
    pub(super) name: &'f [u32],
    #[serde(rename = "isJS")]
    pub(super) is_js: Vec<bool>,
    #[serde(rename = "relevantForJS")]
    pub(super) relevant_for_js: Vec<bool>,
    /// -1 where there is none.
    pub(super) resource: &'f [i64],
    pub(super) file_name: &'f [Option<u32>],
    pub(super) line_number: Vec<Option<u32>>,
    pub(super) column_number: Vec<Option<u32>>,
}

#[derive(Serialize)]
pub(super) struct ResourceTable<'f> {
    pub(super) length: usize,
    pub(super) lib: Vec<u32>,
    pub(super) name: &'f [u32],
    pub(super) host: Vec<Option<u32>>,
    pub(super) r#type: Vec<u32>,
}

//! Requests of OTLP profiles (github.com/open-telemetry/opentelemetry-proto 1.11, `profiles/v1development`), as far as they
//! are written.
//!
//! A profile of pprof becomes a profile for each of its types, which share one dictionary. Its tables begin with an empty
//! entry, which is none; as the numbers of pprof's objects begin with 1, they stay what they are.

use super::profile::Profile as Pprof;
use super::pushed::Resource;
use prost::{Message, Oneof};
use std::collections::HashMap;

/// Types of samples that are counted over a time. All others are those of a moment.
const OVER_TIME: &str = "alloc_";

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resource_profiles: Vec<ResourceProfiles>,
    #[prost(message, optional, tag = "2")]
    dictionary: Option<Dictionary>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceProfiles {
    #[prost(message, optional, tag = "1")]
    resource: Option<ResourceMessage>,
    #[prost(message, repeated, tag = "2")]
    scope_profiles: Vec<ScopeProfiles>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMessage {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

#[derive(Clone, PartialEq, Message)]
struct ScopeProfiles {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    profiles: Vec<Profile>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, optional, tag = "1")]
    sample_type: Option<ValueType>,
    #[prost(message, repeated, tag = "2")]
    samples: Vec<Sample>,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(uint64, tag = "4")]
    duration_nano: u64,
    #[prost(message, optional, tag = "5")]
    period_type: Option<ValueType>,
    #[prost(int64, tag = "6")]
    period: i64,
    #[prost(bytes = "vec", tag = "7")]
    profile_id: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int32, tag = "1")]
    type_strindex: i32,
    #[prost(int32, tag = "2")]
    unit_strindex: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(int32, tag = "1")]
    stack_index: i32,
    #[prost(int64, repeated, tag = "4")]
    values: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Dictionary {
    #[prost(message, repeated, tag = "1")]
    mapping_table: Vec<Mapping>,
    #[prost(message, repeated, tag = "2")]
    location_table: Vec<Location>,
    #[prost(message, repeated, tag = "3")]
    function_table: Vec<Function>,
    #[prost(message, repeated, tag = "4")]
    link_table: Vec<Link>,
    #[prost(string, repeated, tag = "5")]
    string_table: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    attribute_table: Vec<Attribute>,
    #[prost(message, repeated, tag = "7")]
    stack_table: Vec<Stack>,
}

#[derive(Clone, PartialEq, Message)]
struct Mapping {
    #[prost(uint64, tag = "1")]
    memory_start: u64,
    #[prost(uint64, tag = "2")]
    memory_limit: u64,
    #[prost(int32, tag = "4")]
    filename_strindex: i32,
    #[prost(int32, repeated, tag = "5")]
    attribute_indices: Vec<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(int32, tag = "1")]
    mapping_index: i32,
    #[prost(uint64, tag = "2")]
    address: u64,
    #[prost(message, repeated, tag = "3")]
    lines: Vec<Line>,
    #[prost(int32, repeated, tag = "4")]
    attribute_indices: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(int32, tag = "1")]
    function_index: i32,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(int32, tag = "1")]
    name_strindex: i32,
    #[prost(int32, tag = "3")]
    filename_strindex: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(int32, tag = "1")]
    key_strindex: i32,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct Stack {
    #[prost(int32, repeated, tag = "1")]
    location_indices: Vec<i32>,
}

/// The answer to a request, as far as it is read.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportResponse {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<PartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
struct PartialSuccess {
    #[prost(int64, tag = "1")]
    rejected_profiles: i64,
    #[prost(string, tag = "2")]
    error_message: String,
}

/// How many profiles of a request the answer says were not taken, and why; `None` if all were. What is no answer of OTLP says
/// nothing.
pub(super) fn rejected(answer: &[u8]) -> Option<(u64, String)> {
    let partial = ExportResponse::decode(answer).ok()?.partial_success?;
    let rejected = u64::try_from(partial.rejected_profiles).ok().filter(|&rejected| rejected != 0)?;
    Some((rejected, partial.error_message))
}

/// Numbers of tables that are bounded by a request's size.
fn index(number: impl TryInto<i32>) -> i32 {
    number.try_into().unwrap_or_default()
}

/// A request with a profile for each type of samples, of what was counted between two times since 1970. A type of which
/// there is nothing to tell has none.
pub(super) fn request(pprof: &Pprof, resource: &Resource, (since, until): (u64, u64)) -> ExportRequest {
    let mut dictionary = dictionary(pprof);
    let samples = stacks(pprof, &mut dictionary);
    let typed = |of: &super::profile::ValueType| ValueType {
        type_strindex: index(of.r#type),
        unit_strindex: index(of.unit),
    };
    let mut profiles = Vec::new();
    for (at, sample_type) in pprof.sample_type.iter().enumerate() {
        let name = usize::try_from(sample_type.r#type).ok().and_then(|name| pprof.string_table.get(name));
        let over_time = name.is_some_and(|name| name.starts_with(OVER_TIME));
        let told = |(stack, values): &(i32, Vec<i64>)| {
            let value = values.get(at).copied().filter(|&value| value != 0)?;
            Some(Sample { stack_index: *stack, values: vec![value] })
        };
        let samples: Vec<Sample> = samples.iter().filter_map(told).collect();
        if samples.is_empty() {
            continue;
        }
        profiles.push(Profile {
            sample_type: Some(typed(sample_type)),
            samples,
            time_unix_nano: if over_time { since } else { until },
            duration_nano: if over_time { until.saturating_sub(since) } else { 0 },
            period_type: pprof.period_type.as_ref().map(typed),
            period: pprof.period,
            profile_id: resource.id.wrapping_add(at as u128).max(1).to_be_bytes().to_vec(),
        });
    }
    let text = |(key, value): &(String, String)| KeyValue {
        key: key.clone(),
        value: Some(AnyValue { value: Some(Value::Text(value.clone())) }),
    };
    let mut attributes: Vec<KeyValue> = resource.attributes.iter().map(text).collect();
    let pid = AnyValue { value: Some(Value::Number(resource.pid.into())) };
    attributes.push(KeyValue { key: "process.pid".into(), value: Some(pid) });
    let scope = Scope { name: "grapnel".into(), version: env!("CARGO_PKG_VERSION").into() };
    let scope_profiles = vec![ScopeProfiles { scope: Some(scope), profiles }];
    let resource = Some(ResourceMessage { attributes });
    ExportRequest {
        resource_profiles: vec![ResourceProfiles { resource, scope_profiles }],
        dictionary: Some(dictionary),
    }
}

/// The tables that stay what they are, and those without stacks.
fn dictionary(pprof: &Pprof) -> Dictionary {
    let mut strings = pprof.string_table.clone();
    let mut string = |text: &str| {
        strings.push(text.to_owned());
        index(strings.len() - 1)
    };
    let [build_id, frame_type] = ["process.executable.build_id.gnu", "profile.frame.type"].map(&mut string);
    let text = |text: &str| Some(AnyValue { value: Some(Value::Text(text.to_owned())) });
    let native = Attribute { key_strindex: frame_type, value: text("native") };
    const NATIVE: i32 = 1;
    let mut attributes = vec![Attribute::default(), native];
    let mut mappings = vec![Mapping::default()];
    for mapping in &pprof.mapping {
        let id = usize::try_from(mapping.build_id).ok().and_then(|id| pprof.string_table.get(id));
        let known = id.filter(|id| !id.is_empty()).map(|id| {
            let attribute = Attribute { key_strindex: build_id, value: text(id) };
            let known = attributes.iter().position(|other| *other == attribute);
            known.unwrap_or_else(|| {
                attributes.push(attribute);
                attributes.len() - 1
            })
        });
        mappings.push(Mapping {
            memory_start: mapping.memory_start,
            memory_limit: mapping.memory_limit,
            filename_strindex: index(mapping.filename),
            attribute_indices: known.map(index).into_iter().collect(),
        });
    }
    let mut locations = vec![Location::default()];
    locations.extend(pprof.location.iter().map(|location| {
        let line =
            |line: &super::profile::Line| Line { function_index: index(line.function_id), line: line.line };
        Location {
            mapping_index: index(location.mapping_id),
            address: location.address,
            lines: location.line.iter().map(line).collect(),
            attribute_indices: if location.mapping_id == 0 { Vec::new() } else { vec![NATIVE] },
        }
    }));
    let mut functions = vec![Function::default()];
    functions.extend(pprof.function.iter().map(|function| Function {
        name_strindex: index(function.name),
        filename_strindex: index(function.filename),
    }));
    Dictionary {
        mapping_table: mappings,
        location_table: locations,
        function_table: functions,
        link_table: vec![Link { trace_id: vec![0; 16], span_id: vec![0; 8] }],
        string_table: strings,
        attribute_table: attributes,
        stack_table: vec![Stack::default()],
    }
}

/// Each stack once, and what belongs to it: two places of the trace may be one here.
fn stacks(pprof: &Pprof, dictionary: &mut Dictionary) -> Vec<(i32, Vec<i64>)> {
    let mut known: HashMap<&[u64], usize> = HashMap::with_capacity(pprof.sample.len());
    let mut sums: Vec<(i32, Vec<i64>)> = Vec::with_capacity(pprof.sample.len());
    for sample in &pprof.sample {
        match known.get(sample.location_id.as_slice()) {
            Some(&at) => {
                for (sum, value) in sums[at].1.iter_mut().zip(&sample.value) {
                    *sum = sum.saturating_add(*value);
                }
            }
            None => {
                known.insert(&sample.location_id, sums.len());
                let location_indices = sample.location_id.iter().map(|&id| index(id)).collect();
                dictionary.stack_table.push(Stack { location_indices });
                sums.push((index(dictionary.stack_table.len() - 1), sample.value.clone()));
            }
        }
    }
    sums
}

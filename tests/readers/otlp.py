"""Reads a request of OTLP profiles by the protocol's own classes (PyPI's opentelemetry-proto), checks what the protocol
demands of its tables, and prints what it says as JSON.

The first argument is where the classes are; the request comes by stdin, compressed by gzip."""

import gzip
import json
import sys

sys.path.insert(0, sys.argv[1])
from opentelemetry.proto.collector.profiles.v1development.profiles_service_pb2 import ExportProfilesServiceRequest

request = ExportProfilesServiceRequest.FromString(gzip.decompress(sys.stdin.buffer.read()))
tables = request.dictionary
strings = tables.string_table


def value_of(value):
    return getattr(value, value.WhichOneof("value"))


def attributes_of(owner):
    pairs = [tables.attribute_table[at] for at in owner.attribute_indices]
    found = {strings[pair.key_strindex]: value_of(pair.value) for pair in pairs}
    assert len(found) == len(pairs), "a key comes twice"
    return found


# The first entry of each table is empty, and no entry comes twice.
assert strings[0] == ""
assert tables.link_table[0].trace_id == bytes(16) and tables.link_table[0].span_id == bytes(8)
for name in ("mapping_table", "location_table", "function_table", "attribute_table", "stack_table"):
    table = getattr(tables, name)
    assert table[0] == type(table[0])(), name
    assert len({entry.SerializeToString(deterministic=True) for entry in table}) == len(table), name
assert len(set(strings)) == len(strings)


def frame_of(at):
    assert at != 0
    location = tables.location_table[at]
    mapping = tables.mapping_table[location.mapping_index]
    functions = [tables.function_table[line.function_index] for line in location.lines]
    assert functions and all(function.name_strindex for function in functions)
    if location.mapping_index:
        assert mapping.memory_start <= location.address <= mapping.memory_limit, location
    return {
        "functions": [strings[function.name_strindex] for function in functions],
        "module": strings[mapping.filename_strindex],
        "build_id": attributes_of(mapping).get("process.executable.build_id.gnu"),
        "type": attributes_of(location).get("profile.frame.type"),
    }


def profile_of(profile):
    assert len(profile.profile_id) == 16 and any(profile.profile_id)
    stacks = [sample.stack_index for sample in profile.samples]
    assert stacks and 0 not in stacks and len(set(stacks)) == len(stacks)
    assert all(len(sample.values) == 1 and sample.values[0] > 0 for sample in profile.samples)
    largest = max(profile.samples, key=lambda sample: sample.values[0])
    return {
        "id": profile.profile_id.hex(),
        "type": strings[profile.sample_type.type_strindex],
        "unit": strings[profile.sample_type.unit_strindex],
        "period_type": strings[profile.period_type.type_strindex] + "/" + strings[profile.period_type.unit_strindex],
        "period": profile.period,
        "time": profile.time_unix_nano,
        "duration": profile.duration_nano,
        "sum": sum(sample.values[0] for sample in profile.samples),
        "largest": [frame_of(at) for at in tables.stack_table[largest.stack_index].location_indices],
    }


[resource] = request.resource_profiles
[scope] = resource.scope_profiles
json.dump(
    {
        "attributes": {pair.key: value_of(pair.value) for pair in resource.resource.attributes},
        "scope": scope.scope.name,
        "profiles": [profile_of(profile) for profile in scope.profiles],
    },
    sys.stdout,
)

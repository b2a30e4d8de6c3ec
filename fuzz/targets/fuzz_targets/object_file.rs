#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    grapnel_fuzz::trace::object_file(input);
});

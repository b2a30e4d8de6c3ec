#![no_main]

libfuzzer_sys::fuzz_target!(|entropy: &[u8]| {
    grapnel_fuzz::target::relocate(grapnel_fuzz::target::Isa::Aarch64, entropy);
});

//! All opcodes, for tests that compare tables.

/// Those that choose among instructions.
const PREFIXES: [&[u8]; 16] = [
    &[],
    &[0x66],
    &[0x48],
    &[0x4f],
    &[0xf2],
    &[0xf3],
    &[0x66, 0x4d],
    &[0xf3, 0x48],
    &[0x67],
    &[0xf0],
    &[0xf3, 0x66],
    &[0x41],
    &[0x65],
    &[0x44],
    &[0x49],
    &[0xf2, 0x48],
];
const ESCAPES: [&[u8]; 4] = [&[], &[0x0f], &[0x0f, 0x38], &[0x0f, 0x3a]];

/// Every opcode with every ModRM under these prefixes and `more`, to which the caller adds what follows.
pub(super) fn each_opcode(more: &[&[u8]], mut take: impl FnMut(&mut Vec<u8>)) {
    for prefix in PREFIXES.iter().chain(more) {
        for escape in ESCAPES {
            for opcode in 0..=255 {
                for modrm in 0..=255 {
                    take(&mut [*prefix, escape, &[opcode, modrm]].concat());
                }
            }
        }
    }
}

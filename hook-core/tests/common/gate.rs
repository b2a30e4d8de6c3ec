//! A gate in each instruction set.

use grapnel_hook::way_out;

/// A gate for a function at `target` that lets calls pass whose argument doesn't have this bit, one of the lowest eight.
pub(crate) fn for_bit(target: *const (), bit: u8) -> Vec<u8> {
    let back = way_out(target) as i32;
    if cfg!(target_arch = "x86_64") {
        // test dil, 1 << bit; jnz
        [&[0x40, 0xf6, 0xc7, 1 << bit, 0x0f, 0x85][..], &(-10 - back).to_le_bytes()].concat()
    } else if cfg!(target_arch = "aarch64") {
        // tbnz w0, #bit
        let distance = (-back / 4) as u32 & 0x3fff;
        (0x3700_0000 | u32::from(bit) << 19 | distance << 5).to_le_bytes().to_vec()
    } else if target.addr() & 1 == 0 {
        // tst r0, #1 << bit; bne
        let branch = 0x1a00_0000 | (((-back - 12) / 4) as u32 & 0xff_ffff);
        [(0xe310_0000 | 1_u32 << bit).to_le_bytes(), branch.to_le_bytes()].concat()
    } else {
        // tst.w r0, #1 << bit; bne
        let branch = 0xd100 | (((-back - 8) / 2) as u16 & 0xff);
        [0xf010, 0x0f00 | 1_u16 << bit, branch].into_iter().flat_map(u16::to_le_bytes).collect()
    }
}

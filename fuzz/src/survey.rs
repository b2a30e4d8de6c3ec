//! How functions of files become cases: where they are put, how much a redirect takes, and where they go.

use grapnel_relocator::{Isa, WindowOptions, redirect};

use crate::{case::Case, corpus::Function};

/// A redirect's length and the way to its destination.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// What it is called in the table.
    pub name: &'static str,
    /// How long the window must be.
    pub min_len: usize,
    /// From the window to the destination, in bytes.
    pub distance: i64,
}

/// The ordinary redirect to near destinations, and the absolute one to far destinations in both directions.
#[must_use]
pub const fn settings(isa: Isa) -> [Setting; 3] {
    let lengths = redirect::lengths(isa);
    // Near is what an arena can find within the branch's reach; far is beyond every form but the absolute one.
    let (near, above, below) = match isa {
        Isa::X86_64 => (0x1000_0000, 0x2000_0000_0000, -0x0800_0000_0000),
        Isa::Aarch64 => (0x0400_0000, 0x2000_0000_0000, -0x2000_0000_0000),
        Isa::A32 => (0x0100_0000, 0x6000_0000, -0x3000_0000),
        Isa::T32 => (0x0080_0000, 0x6000_0000, -0x3000_0000),
    };
    [
        Setting { name: "near", min_len: lengths.near, distance: near },
        Setting { name: "far above", min_len: lengths.absolute, distance: above },
        Setting { name: "far below", min_len: lengths.absolute, distance: below },
    ]
}

/// Where the file's code is put, so that no address is near 0.
const fn loaded_at(isa: Isa) -> u64 {
    match isa {
        Isa::X86_64 => 0x0000_1000_0000_0000,
        Isa::Aarch64 => 0x0000_5500_0000_0000,
        Isa::A32 | Isa::T32 => 0x4000_0000,
    }
}

/// How much of the code behind a window is given, for what it shows of the registers, in bytes.
const AHEAD: usize = 512;

/// The window at an offset of a function.
#[must_use]
pub fn case(isa: Isa, function: &Function, offset: usize, setting: Setting) -> Case {
    let from = function.addr.add(loaded_at(isa) + offset as u64);
    let bytes = &function.bytes[offset..];
    Case {
        about: Vec::new(),
        isa,
        from,
        to: to(isa, from.offset(setting.distance).0),
        min_len: setting.min_len,
        options: WindowOptions {
            extent: function.extent.map(|extent| extent - offset),
            allow_padding: true,
            entry: function.entry && offset == 0,
            shadow_stack: false,
        },
        source: bytes[..bytes.len().min(setting.min_len + AHEAD)].to_vec(),
    }
}

/// Where an arena would put code: at a multiple of 16.
const fn to(isa: Isa, addr: u64) -> grapnel_relocator::CodeAddr {
    grapnel_relocator::CodeAddr(match isa {
        Isa::X86_64 => addr,
        Isa::Aarch64 | Isa::A32 | Isa::T32 => addr & !15,
    })
}

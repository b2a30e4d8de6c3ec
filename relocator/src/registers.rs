//! Sets of general registers.

use core::fmt;

use grapnel_arch::Isa;

/// A set of an instruction set's general registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Registers {
    isa: Isa,
    mask: u32,
}

impl Registers {
    /// No register.
    #[must_use]
    pub const fn none(isa: Isa) -> Self {
        Self { isa, mask: 0 }
    }

    /// One register, by its number in instructions: below 16 on x86-64 (RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, ...),
    /// A32 and T32, below 31 on AArch64.
    #[must_use]
    pub const fn one(isa: Isa, number: u8) -> Self {
        Self { isa, mask: 1 << number }
    }

    /// There is none in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.mask == 0
    }

    /// The register is in it.
    #[must_use]
    pub const fn contains(self, number: u8) -> bool {
        self.mask >> number & 1 == 1
    }

    /// What is in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self { isa: self.isa, mask: self.mask | other.mask }
    }

    /// The numbers, ascending.
    pub fn numbers(self) -> impl Iterator<Item = u8> {
        (0..32).filter(move |&number| self.contains(number))
    }

    /// The names, in the manual's spelling and in the order of the numbers.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        let names: &[&str] = match self.isa {
            Isa::X86_64 => &X86_64,
            Isa::Aarch64 => &AARCH64,
            Isa::A32 | Isa::T32 => &AARCH32,
        };
        self.numbers().filter_map(|number| names.get(usize::from(number)).copied())
    }
}

impl fmt::Display for Registers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, name) in self.names().enumerate() {
            f.write_str(if number == 0 { "" } else { " " })?;
            f.write_str(name)?;
        }
        Ok(())
    }
}

const X86_64: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

const AARCH64: [&str; 31] = [
    "x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "x9", "x10", "x11", "x12", "x13", "x14", "x15",
    "x16", "x17", "x18", "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "x29", "x30",
];

const AARCH32: [&str; 16] =
    ["r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "sp", "lr", "pc"];

//! The frame of a trace file: an 8-byte magic, a version, then blocks one after another.
//!
//! ```text
//! file   = "GRAPNEL\0" version:u16 zero:[u8;6] block*
//! block  = "GBLK" kind:u8 codec:u8 zero:u16 raw_len:u32 stored_len:u32 time_ns:u64 checksum:u64 bytes
//! ```
//! Little-endian. `checksum` is XXH64 (seed 0) of the 24 bytes before it and of `bytes`. `time_ns` is the time
//! of the block's first record. Each block can be decoded without the others: deltas begin anew in each. A
//! writer appends whole blocks, so a file that is cut at any place is complete up to its last whole block.

/// First bytes of a trace file.
pub const FILE_MAGIC: [u8; 8] = *b"GRAPNEL\0";
/// The format's version.
pub const VERSION: u16 = 3;
/// Bytes before the first block.
pub const FILE_HEADER: usize = 16;
/// Bytes of a block before its content.
pub const BLOCK_HEADER: usize = 32;
/// The most that a block may hold, decompressed or stored. A reader needs no more than this at a time.
pub const MAX_BLOCK: usize = 8 << 20;
/// First bytes of a block.
pub const BLOCK_MAGIC: [u8; 4] = *b"GBLK";

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum BlockKind {
    /// A [`crate::ProcessInfo`]; the first block of every trace.
    Info = 1,
    /// Events.
    Events = 2,
    /// How the recording ended; the last block of a trace that was ended in order.
    End = 3,
    /// What the recording has cost so far: a [`crate::Meter`], which replaces any before.
    Meter = 4,
    /// What a scan for leaks found: a [`crate::LeakScan`], which replaces any before.
    Leaks = 5,
}

/// The head of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockHeader {
    /// What it holds. Blocks of an unknown kind are skipped.
    pub kind: u8,
    /// 0: stored as it is, 1: frames of zstd, whose contents follow one another.
    pub codec: u8,
    /// Bytes once decompressed.
    pub raw_len: u32,
    /// Bytes in the file.
    pub stored_len: u32,
    /// Time of the first record, in nanoseconds since the recording began.
    pub time_ns: u64,
    /// See the module's description.
    pub checksum: u64,
}

impl BlockHeader {
    /// The bytes in the file.
    pub fn encode(&self) -> [u8; BLOCK_HEADER] {
        let mut out = [0; BLOCK_HEADER];
        out[..4].copy_from_slice(&BLOCK_MAGIC);
        out[4] = self.kind;
        out[5] = self.codec;
        out[8..12].copy_from_slice(&self.raw_len.to_le_bytes());
        out[12..16].copy_from_slice(&self.stored_len.to_le_bytes());
        out[16..24].copy_from_slice(&self.time_ns.to_le_bytes());
        out[24..].copy_from_slice(&self.checksum.to_le_bytes());
        out
    }

    /// The inverse; the error says what is wrong.
    pub fn decode(bytes: &[u8; BLOCK_HEADER]) -> Result<Self, &'static str> {
        let u32_at = |at: usize| bytes[at..].first_chunk().copied().map_or(0, u32::from_le_bytes);
        let u64_at = |at: usize| bytes[at..].first_chunk().copied().map_or(0, u64::from_le_bytes);
        if bytes[..4] != BLOCK_MAGIC {
            return Err("no block begins here");
        }
        if bytes[6..8] != [0, 0] {
            return Err("a block's reserved bytes are not zero");
        }
        let header = Self {
            kind: bytes[4],
            codec: bytes[5],
            raw_len: u32_at(8),
            stored_len: u32_at(12),
            time_ns: u64_at(16),
            checksum: u64_at(24),
        };
        if header.raw_len as usize > MAX_BLOCK || header.stored_len as usize > MAX_BLOCK {
            return Err("a block claims to be larger than blocks are");
        }
        Ok(header)
    }
}

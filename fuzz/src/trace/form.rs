//! The form of a trace file, put right, so that a fuzzer's changes reach what is in its blocks.

use grapnel_trace::block::{
    BLOCK_HEADER, BLOCK_MAGIC, BlockHeader, FILE_HEADER, FILE_MAGIC, MAX_BLOCK, VERSION,
};
use xxhash_rust::xxh64::Xxh64;

/// The same with the head that a trace has, and with lengths and checksums of its blocks that fit. A block goes as far as to the
/// next one's first bytes.
pub fn mended(input: &[u8]) -> Vec<u8> {
    let mut out = FILE_MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.resize(FILE_HEADER, 0);
    let mut rest = input.get(FILE_HEADER..).unwrap_or(&[]);
    while let Some((header, behind)) = rest.split_first_chunk::<BLOCK_HEADER>() {
        let next = behind.windows(BLOCK_MAGIC.len()).position(|window| window == BLOCK_MAGIC);
        let (stored, others) = behind.split_at(next.unwrap_or(behind.len()).min(MAX_BLOCK));
        rest = others;
        let mut header = *header;
        header[..4].copy_from_slice(&BLOCK_MAGIC);
        header[6..8].fill(0);
        // Too long ones stay what they are.
        if let Ok(mut header) = BlockHeader::decode(&header) {
            if header.codec == 0 {
                header.raw_len = stored.len() as u32;
            }
            push(&mut out, header, stored);
        } else {
            out.extend(header);
            out.extend(stored);
        }
    }
    out.extend(rest);
    out
}

/// A good trace without compression, as seeds are; `None` if it is none.
pub fn unpacked(trace: &[u8]) -> Option<Vec<u8>> {
    let (head, mut rest) = trace.split_at_checked(FILE_HEADER)?;
    let mut out = head.to_vec();
    while let Some((header, behind)) = rest.split_first_chunk::<BLOCK_HEADER>() {
        let mut header = BlockHeader::decode(header).ok()?;
        let (stored, others) = behind.split_at_checked(header.stored_len as usize)?;
        rest = others;
        let raw = if header.codec == 0 {
            stored.to_vec()
        } else {
            zstd::bulk::decompress(stored, MAX_BLOCK).ok()?
        };
        header.codec = 0;
        push(&mut out, header, &raw);
    }
    Some(out)
}

fn push(out: &mut Vec<u8>, header: BlockHeader, stored: &[u8]) {
    let mut header = BlockHeader { stored_len: stored.len() as u32, ..header };
    let mut hash = Xxh64::new(0);
    hash.update(&header.encode()[..24]);
    hash.update(stored);
    header.checksum = hash.digest();
    out.extend(header.encode());
    out.extend(stored);
}

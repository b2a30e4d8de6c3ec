//! iced-x86's `BlockEncoder` on the windows that the relocator takes.

use grapnel_relocator::CodeAddr;
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code, Decoder, DecoderOptions, IcedError, Instruction,
    InstructionBlock,
};

use crate::windows::Start;

/// Decodes the window, adds the jump back if it falls through, and encodes all at `to`, with the offsets that a map of
/// addresses needs. Answers the length of the code.
///
/// # Errors
///
/// If an operand does not reach from `to`: it has no far form for operands.
pub fn iced(start: &Start, min_len: usize, to: CodeAddr) -> Result<usize, IcedError> {
    let mut decoder = Decoder::with_ip(64, &start.bytes, start.from.0, DecoderOptions::NONE);
    let mut instructions = Vec::new();
    let mut len = 0;
    while len < min_len {
        let instruction = decoder.decode();
        len += instruction.len();
        instructions.push(instruction);
    }
    let behind = start.from.add(len as u64);
    instructions.push(Instruction::with_branch(Code::Jmp_rel32_64, behind.0)?);
    let block = InstructionBlock::new(&instructions, to.0);
    let result = BlockEncoder::encode(64, block, BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS)?;
    Ok(result.code_buffer.len() + result.new_instruction_offsets.len())
}

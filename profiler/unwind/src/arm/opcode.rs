//! The unwinding instructions of EHABI32, section 10.3, table 4.

/// What an instruction does. `vsp` is the stack pointer of the frame as far as it is unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opcode {
    /// `vsp += n`
    Add(i32),
    /// Loads the registers of the mask from `vsp` up, the lowest first. If sp is among them, that is the new vsp.
    Pop(u16),
    /// Passes over registers that no unwinding depends on (vector registers, WMMX ones, a return address's
    /// authentication code): `vsp += n`.
    Skip(u32),
    /// `vsp = r[n]`
    Set(u8),
    /// Changes nothing that is followed here: the return address was signed with vsp.
    Nothing,
    /// The end.
    Finish,
}

/// Why there is no instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoOpcode {
    /// "Refuse to unwind."
    Refused,
    /// Reserved or spare, or with operands that no register has.
    Unknown,
}

/// Takes the next instruction from bytes. Where there are none it is the end: a `finish` is implied.
pub(super) fn next(bytes: &mut impl Iterator<Item = u8>) -> Result<Opcode, NoOpcode> {
    let Some(first) = bytes.next() else { return Ok(Opcode::Finish) };
    let low = |bits: u32| u32::from(first) & ((1 << bits) - 1);
    match first {
        0x00..=0x3f => Ok(Opcode::Add((low(6) as i32) * 4 + 4)),
        0x40..=0x7f => Ok(Opcode::Add(-((low(6) as i32) * 4 + 4))),
        0x80..=0x8f => match (low(4) << 8) | operand(bytes)? {
            0 => Err(NoOpcode::Refused),
            mask => Ok(Opcode::Pop((mask << 4) as u16)),
        },
        // Kept for moves between registers.
        0x9d | 0x9f => Err(NoOpcode::Unknown),
        0x90..=0x9e => Ok(Opcode::Set(low(4) as u8)),
        0xa0..=0xa7 => Ok(Opcode::Pop(from_r4(low(3)))),
        0xa8..=0xaf => Ok(Opcode::Pop(from_r4(low(3)) | 1 << 14)),
        0xb0 => Ok(Opcode::Finish),
        0xb1 => match operand(bytes)? {
            mask @ 1..=0xf => Ok(Opcode::Pop(mask as u16)),
            _ => Err(NoOpcode::Unknown),
        },
        0xb2 => Ok(Opcode::Add(uleb(bytes)?)),
        // FSTMFDX stores one word more than the registers have.
        0xb3 => vectors(operand(bytes)?, 16).map(|len| Opcode::Skip(len + 4)),
        0xb4 => Ok(Opcode::Skip(4)),
        0xb5 => Ok(Opcode::Nothing),
        0xb6..=0xb7 => Err(NoOpcode::Unknown),
        0xb8..=0xbf => Ok(Opcode::Skip(8 * (low(3) + 1) + 4)),
        0xc0..=0xc5 => Ok(Opcode::Skip(8 * (low(3) + 1))),
        0xc6 => vectors(operand(bytes)?, 16).map(Opcode::Skip),
        0xc7 => match operand(bytes)? {
            mask @ 1..=0xf => Ok(Opcode::Skip(4 * mask.count_ones())),
            _ => Err(NoOpcode::Unknown),
        },
        // d16 to d31, and d0 to d15.
        0xc8 | 0xc9 => vectors(operand(bytes)?, 16).map(Opcode::Skip),
        0xca..=0xcf => Err(NoOpcode::Unknown),
        0xd0..=0xd7 => Ok(Opcode::Skip(8 * (low(3) + 1))),
        0xd8..=0xff => Err(NoOpcode::Unknown),
    }
}

fn operand(bytes: &mut impl Iterator<Item = u8>) -> Result<u32, NoOpcode> {
    bytes.next().map(u32::from).ok_or(NoOpcode::Unknown)
}

/// r4 to r4 + n.
fn from_r4(n: u32) -> u16 {
    ((2u16 << n) - 1) << 4
}

/// The bytes of the registers of `sssscccc`: from the s-th on c + 1 of `count`, eight bytes each.
fn vectors(operand: u32, count: u32) -> Result<u32, NoOpcode> {
    let (first, more) = (operand >> 4, operand & 0xf);
    if first + more >= count { Err(NoOpcode::Unknown) } else { Ok(8 * (more + 1)) }
}

/// What `0xb2` adds.
fn uleb(bytes: &mut impl Iterator<Item = u8>) -> Result<i32, NoOpcode> {
    let (mut value, mut shift) = (0u32, 0);
    loop {
        let byte = operand(bytes)?;
        // No frame is larger than the address space.
        if shift > 28 || (byte & 0x7f) << shift >> shift != byte & 0x7f {
            return Err(NoOpcode::Unknown);
        }
        value |= (byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            break;
        }
    }
    let added = value.checked_mul(4).and_then(|n| n.checked_add(0x204)).ok_or(NoOpcode::Unknown)?;
    added.try_into().map_err(|_| NoOpcode::Unknown)
}

//! Random x86-64 windows.

use arbitrary::{Result, Unstructured};
use grapnel_arch::x86_64::decode;
use grapnel_relocator::{CodeAddr, Isa, WindowOptions};

use crate::case::Case;

/// How many instructions a case has.
const INSTS: usize = 10;

/// Instructions with a ModRM that asks for `[rip + disp32]`: what precedes the ModRM, its reg field if that is part of
/// the opcode, and how many bytes of immediate follow.
const RIP: &[(&[u8], Option<u8>, usize)] = &[
    (&[0x8b], None, 0),                         // mov r32
    (&[0x48, 0x8b], None, 0),                   // mov r64
    (&[0x4d, 0x8b], None, 0),                   // mov r8-15, REX.B set
    (&[0x89], None, 0),                         // mov to memory
    (&[0x66, 0x89], None, 0),                   // mov r16 to memory
    (&[0x48, 0x8d], None, 0),                   // lea
    (&[0x4c, 0x8d], None, 0),                   // lea r8-15
    (&[0x8d], None, 0),                         // lea r32
    (&[0x48, 0x63], None, 0),                   // movsxd
    (&[0x0f, 0xb6], None, 0),                   // movzx
    (&[0x48, 0x0f, 0xbf], None, 0),             // movsx
    (&[0x80], Some(7), 1),                      // cmp imm8
    (&[0x83], Some(0), 1),                      // add imm8
    (&[0x48, 0x81], Some(5), 4),                // sub imm32
    (&[0x66, 0x81], Some(7), 2),                // cmp imm16
    (&[0xc7], Some(0), 4),                      // mov imm32
    (&[0x66, 0xc7], Some(0), 2),                // mov imm16
    (&[0xc6], Some(0), 1),                      // mov imm8
    (&[0xf6], Some(0), 1),                      // test imm8
    (&[0xf7], Some(0), 4),                      // test imm32
    (&[0x69], None, 4),                         // imul imm32
    (&[0xc1], Some(4), 1),                      // shl imm8
    (&[0xd3], Some(1), 0),                      // ror cl
    (&[0xf0, 0xff], Some(0), 0),                // lock inc
    (&[0xf0, 0x48, 0x0f, 0xc1], None, 0),       // lock xadd
    (&[0xf0, 0x0f, 0xb1], None, 0),             // lock cmpxchg
    (&[0xf0, 0x48, 0x0f, 0xba], Some(5), 1),    // lock bts imm8
    (&[0x87], None, 0),                         // xchg
    (&[0x64, 0x8b], None, 0),                   // mov fs:
    (&[0x65, 0x48, 0x03], None, 0),             // add gs:
    (&[0x67, 0x8b], None, 0),                   // mov [eip]
    (&[0x67, 0x48, 0x8d], None, 0),             // lea [eip]
    (&[0xff], Some(2), 0),                      // call
    (&[0xff], Some(4), 0),                      // jmp
    (&[0x3e, 0xff], Some(4), 0),                // notrack jmp
    (&[0xff], Some(6), 0),                      // push
    (&[0x8f], Some(0), 0),                      // pop
    (&[0x66, 0xff], Some(6), 0),                // push of 16 bits
    (&[0x8a], None, 0),                         // mov to r8, or to AH to BH
    (&[0x00], None, 0),                         // add r8 to memory
    (&[0x48, 0x2b], None, 0),                   // sub r64
    (&[0x48, 0x89], None, 0),                   // mov r64 to memory
    (&[0x66, 0x8b], None, 0),                   // mov r16
    (&[0x6b], None, 1),                         // imul imm8
    (&[0xf7], Some(4), 0),                      // mul
    (&[0xf3, 0x48, 0x0f, 0xb8], None, 0),       // popcnt
    (&[0xf3, 0x0f, 0xbd], None, 0),             // lzcnt
    (&[0xf0, 0x48, 0x0f, 0xc7], Some(1), 0),    // lock cmpxchg16b
    (&[0xf2, 0x48, 0x0f, 0x2c], None, 0),       // cvttsd2si
    (&[0x66, 0x0f, 0x3a, 0x61], None, 1),       // pcmpestri
    (&[0x64, 0x48, 0x01], None, 0),             // add to fs:
    (&[0xd9], Some(5), 0),                      // fldcw
    (&[0x0f, 0x44], None, 0),                   // cmove
    (&[0x0f, 0x94], Some(0), 0),                // sete
    (&[0x0f, 0x10], None, 0),                   // movups
    (&[0x66, 0x0f, 0xef], None, 0),             // pxor
    (&[0xf2, 0x44, 0x0f, 0x10], None, 0),       // movsd xmm8-15
    (&[0xf3, 0x0f, 0x7f], None, 0),             // movdqu to memory
    (&[0x66, 0x0f, 0x70], None, 1),             // pshufd imm8
    (&[0x66, 0x0f, 0x38, 0x00], None, 0),       // pshufb
    (&[0x66, 0x0f, 0x3a, 0x0f], None, 1),       // palignr imm8
    (&[0xdd], Some(0), 0),                      // fld
    (&[0xd9], Some(7), 0),                      // fnstcw
    (&[0x0f, 0x1f], Some(0), 0),                // nop
    (&[0x0f, 0x18], Some(1), 0),                // prefetch
    (&[0xc5, 0xf9, 0x6f], None, 0),             // vmovdqa
    (&[0xc5, 0x6a, 0x58], None, 0),             // vaddss
    (&[0xc4, 0x62, 0x75, 0x00], None, 0),       // vpshufb
    (&[0xc4, 0xe2, 0xf8, 0xf2], None, 0),       // andn
    (&[0xc4, 0xe3, 0xfb, 0xf0], None, 1),       // rorx
    (&[0x8f, 0xe9, 0x78, 0x80], None, 0),       // vfrczps, XOP
    (&[0x62, 0xf1, 0x6d, 0x58, 0xfe], None, 0), // vpaddd with broadcast
    (&[0xc4, 0xe3, 0x69, 0x4a], None, 1),       // vblendvps is4
    (&[0x62, 0xf1, 0xfe, 0x48, 0x6f], None, 0), // vmovdqu64
    (&[0x62, 0xf3, 0x6d, 0x48, 0x1f], None, 1), // vpcmpd imm8
];

/// One-byte and two-byte opcodes with a ModRM and no immediate, for operands in registers and memory.
const PLAIN: &[&[u8]] = &[
    &[0x01],
    &[0x03],
    &[0x0b],
    &[0x13],
    &[0x1b],
    &[0x21],
    &[0x29],
    &[0x31],
    &[0x33],
    &[0x39],
    &[0x3b],
    &[0x63],
    &[0x84],
    &[0x85],
    &[0x86],
    &[0x87],
    &[0x88],
    &[0x89],
    &[0x8a],
    &[0x8b],
    &[0x8d],
    &[0xd1],
    &[0xd3],
    &[0xf7],
    &[0xff],
    &[0x0f, 0x10],
    &[0x0f, 0x28],
    &[0x0f, 0x45],
    &[0x0f, 0x94],
    &[0x0f, 0xaf],
    &[0x0f, 0xb6],
    &[0x0f, 0xbf],
    &[0x0f, 0xc1],
    &[0x0f, 0xef],
];

/// A displacement that is filled in when the layout is known.
struct Branch {
    /// Where the field lies.
    field: usize,
    /// How many bytes it has.
    width: usize,
}

pub(super) fn case(entropy: &mut Unstructured<'_>) -> Result<Case> {
    let mut code = Vec::new();
    let mut starts = Vec::new();
    let mut branches = Vec::new();
    for _ in 0..INSTS {
        starts.push(code.len());
        inst(entropy, &mut code, &mut branches)?;
    }
    for branch in branches {
        fill(entropy, &mut code, &starts, &branch)?;
    }
    for _ in 0..entropy.int_in_range(0..=6)? {
        overwrite(entropy, &mut code)?;
    }
    code.extend([0x90; 16]);
    let from = CodeAddr(0x0000_1000_0000_0000 + (u64::from(entropy.arbitrary::<u32>()?) << 4));
    let from = from.add(u64::from(entropy.ratio(1u8, 4)?) * entropy.int_in_range(0..=15)?);
    let to = match entropy.int_in_range(0..=11)? {
        0 | 3 | 4 => CodeAddr(0x0000_0500_0000_0000 + u64::from(entropy.arbitrary::<u32>()?)),
        5 | 6 => CodeAddr(0x0000_5000_0000_0000 + u64::from(entropy.arbitrary::<u32>()?)),
        // The last destinations within reach, and the first beyond.
        1 => from.offset(i64::from(i32::MIN) + entropy.int_in_range(-0x2000..=0x2000)?),
        2 => from.offset(i64::from(i32::MAX) + entropy.int_in_range(-0x2000..=0x2000)?),
        _ => from.offset(i64::from(entropy.arbitrary::<i32>()? / 2)),
    };
    let min_len = match entropy.int_in_range(0..=4)? {
        0 => 2,
        1 => 14,
        2 => entropy.int_in_range(1..=32)?,
        _ => 5,
    };
    let options = WindowOptions {
        extent: entropy.ratio(1u8, 4)?.then_some(code.len()),
        allow_padding: entropy.arbitrary()?,
        entry: entropy.arbitrary()?,
        shadow_stack: entropy.ratio(1u8, 4)?,
    };
    Ok(Case { about: Vec::new(), isa: Isa::X86_64, from, to, min_len, options, source: code })
}

fn inst(entropy: &mut Unstructured<'_>, code: &mut Vec<u8>, branches: &mut Vec<Branch>) -> Result<()> {
    match entropy.int_in_range(0..=17)? {
        0..=4 => rip(entropy, code, branches),
        5..=8 => branch(entropy, code, branches),
        9..=11 => plain(entropy, code),
        12..=13 => overwrite(entropy, code),
        14..=15 => common(entropy, code),
        _ => noise(entropy, code),
    }
}

/// A register gets a new value: all of it, or so it looks.
fn overwrite(entropy: &mut Unstructured<'_>, code: &mut Vec<u8>) -> Result<()> {
    let (to, of): (u8, u8) = (entropy.int_in_range(0..=15)?, entropy.int_in_range(0..=15)?);
    let (rex, modrm) = (0x40 | (to >> 3) << 2 | of >> 3, 0xc0 | (to & 7) << 3 | of & 7);
    let same = 0xc0 | (to & 7) << 3 | to & 7;
    match entropy.int_in_range(0..=9)? {
        // mov r32, imm32; mov r16, imm16; mov r8, imm8
        0 => code.extend([0x40 | to >> 3, 0xb8 | to & 7, 1, 0, 0, 0]),
        1 => code.extend([0x66, 0x40 | to >> 3, 0xb8 | to & 7, 1, 0]),
        2 => code.extend([0x40 | to >> 3, 0xb0 | to & 7, 1]),
        // mov r64, r64; mov r32, r32; movzx
        3 => code.extend([rex | 8, 0x8b, modrm]),
        4 => code.extend([rex, 0x8b, modrm]),
        5 => code.extend([rex, 0x0f, 0xb6, modrm]),
        // xor r32, r32; sub r64, r64; xor of two
        6 => code.extend([0x40 | ((to >> 3) * 5), 0x31, same]),
        7 => code.extend([0x48 | ((to >> 3) * 5), 0x29, same]),
        8 => code.extend([rex, 0x33, modrm]),
        // setne r8
        _ => code.extend([0x40 | to >> 3, 0x0f, 0x95, 0xc0 | to & 7]),
    }
    Ok(())
}

fn rip(entropy: &mut Unstructured<'_>, code: &mut Vec<u8>, branches: &mut Vec<Branch>) -> Result<()> {
    let &(opcode, reg, imm) = entropy.choose(RIP)?;
    let reg = match reg {
        Some(reg) => reg,
        None => entropy.int_in_range(0..=7)?,
    };
    let bare =
        !matches!(opcode[0], 0x40..=0x4f | 0x62 | 0x64..=0x67 | 0x3e | 0xc4 | 0xc5 | 0xf0 | 0xf2 | 0xf3);
    if bare && entropy.ratio(1u8, 3)? {
        code.push(0x40 | entropy.int_in_range(0..=15u8)?);
    }
    code.extend(opcode);
    code.push(reg << 3 | 5);
    // Mostly near data; at times what a branch could go to, the neighbourhood, or anything.
    if entropy.ratio(1u8, 8)? {
        branches.push(Branch { field: code.len(), width: 4 });
    }
    let displacement = match entropy.int_in_range(0..=7)? {
        0 => entropy.arbitrary::<i32>()?,
        1 => entropy.int_in_range(-64..=64)?,
        _ => entropy.int_in_range(0x1000..=0x8000)?,
    };
    code.extend(displacement.to_le_bytes());
    code.extend(entropy.bytes(imm)?);
    Ok(())
}

fn branch(entropy: &mut Unstructured<'_>, code: &mut Vec<u8>, branches: &mut Vec<Branch>) -> Result<()> {
    if entropy.ratio(1u8, 8)? {
        code.push(*entropy.choose(&[0x2e, 0x3e, 0xf2, 0xf3, 0x66, 0x67, 0x48])?);
    }
    let condition: u8 = entropy.int_in_range(0..=15)?;
    let width = match entropy.int_in_range(0..=11)? {
        0..=2 => {
            code.push(0x70 | condition);
            1
        }
        3..=4 => {
            code.extend([0x0f, 0x80 | condition]);
            4
        }
        5..=7 => {
            code.push(0xe0 | condition & 3);
            1
        }
        8 => {
            code.push(0xeb);
            1
        }
        9 => {
            code.push(0xe9);
            4
        }
        10 => {
            code.push(0xe8);
            4
        }
        _ => {
            code.extend([0xc7, 0xf8]);
            4
        }
    };
    branches.push(Branch { field: code.len(), width });
    code.extend(vec![0; width]);
    Ok(())
}

/// Chooses the target of a branch: an instruction of the case, rarely the middle of one, or anything.
fn fill(entropy: &mut Unstructured<'_>, code: &mut [u8], starts: &[usize], branch: &Branch) -> Result<()> {
    let end = branch.field + branch.width;
    let displacement = match entropy.int_in_range(0..=9)? {
        0..=4 => *entropy.choose(starts)? as i64 - end as i64,
        5 => entropy.int_in_range(0..=code.len())? as i64 - end as i64,
        6 => 0,
        _ if branch.width == 1 => i64::from(entropy.arbitrary::<i8>()?),
        _ => i64::from(entropy.arbitrary::<i32>()? / 2),
    };
    code[branch.field..end].copy_from_slice(&displacement.to_le_bytes()[..branch.width]);
    Ok(())
}

/// An opcode with operands of every form.
fn plain(entropy: &mut Unstructured<'_>, code: &mut Vec<u8>) -> Result<()> {
    let mut inst = Vec::new();
    if entropy.ratio(1u8, 8)? {
        inst.push(*entropy.choose(&[0x66, 0x64, 0x65, 0x2e, 0x3e])?);
    }
    if entropy.arbitrary()? {
        inst.push(0x40 | entropy.int_in_range(0..=15u8)?);
    }
    inst.extend(*entropy.choose(PLAIN)?);
    inst.extend(entropy.bytes(6)?);
    whole(&inst, code);
    Ok(())
}

/// What prologues are made of.
fn common(entropy: &mut Unstructured<'_>, code: &mut Vec<u8>) -> Result<()> {
    const COMMON: &[&[u8]] = &[
        &[0xf3, 0x0f, 0x1e, 0xfa],                                     // endbr64
        &[0x48, 0x89, 0xe5],                                           // mov rbp, rsp
        &[0x48, 0x83, 0xec, 0x28],                                     // sub rsp, 0x28
        &[0x41, 0x57],                                                 // push r15
        &[0x31, 0xc0],                                                 // xor eax, eax
        &[0x64, 0x48, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0],                // mov rax, fs:0x28
        &[0xc3],                                                       // ret
        &[0xf3, 0xc3],                                                 // rep ret
        &[0xff, 0xe0],                                                 // jmp rax
        &[0xff, 0xd0],                                                 // call rax
        &[0x0f, 0x05],                                                 // syscall
        &[0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x0f, 0x05], // syscall
        &[0x0f, 0x0b],                                                 // ud2
        &[0xcc],                                                       // int3
        &[0xf3, 0xa4],                                                 // rep movsb
        &[0xf3, 0x48, 0xab],                                           // rep stosq
        &[0xd9, 0x74, 0x24, 0xd8],                                     // fnstenv [rsp-0x28]
        &[0x48, 0xb8, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11], // mov rax, imm64
        &[0xa8, 0x01],                                                 // test al, 1
    ];
    match entropy.int_in_range(0..=2)? {
        0 => code.push(0x50 | entropy.int_in_range(0..=15u8)?),
        _ => code.extend(*entropy.choose(COMMON)?),
    }
    Ok(())
}

/// Bytes, if they happen to be an instruction.
fn noise(entropy: &mut Unstructured<'_>, code: &mut Vec<u8>) -> Result<()> {
    let bytes = entropy.bytes(15)?.to_vec();
    whole(&bytes, code);
    Ok(())
}

fn whole(bytes: &[u8], code: &mut Vec<u8>) {
    match decode(CodeAddr(0), bytes) {
        Ok(inst) => code.extend(inst.bytes()),
        Err(_) => code.push(0x90),
    }
}

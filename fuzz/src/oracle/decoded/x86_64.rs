//! x86-64. What an emulator does not know are VEX, EVEX and the newest instructions.

use grapnel_arch::x86_64::{Flow, Inst, decode};
use grapnel_relocator::CodeAddr;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};

use crate::oracle::{Subject, Verdict};

/// Every instruction that does not branch has become one that is the same in all but the bytes of its displacement, and
/// every branch out of the window has its target somewhere in the code.
pub(super) fn judge(subject: &Subject<'_>) -> Verdict {
    let map = subject.relocated.map();
    let (code, literals) = (&subject.relocated.bytes()[..map.code_len()], subject.relocated.literals());
    for (from, to) in map.iter().filter(|&(from, _)| from < subject.window.code_len()) {
        let at = subject.case.from.add(from as u64);
        let Ok(before) = decode(at, &subject.original()[from..]) else {
            return Verdict::Mismatch(format!("no instruction at {at} in the window"));
        };
        let there = subject.case.to.add(to as u64);
        let Ok(after) = decode(there, &code[to..]) else {
            return Verdict::Mismatch(format!("no instruction at {there}, for {at}"));
        };
        if stays(&before) {
            if !same(&before, &after) && !through_destination(&before, &after, &code[to..]) {
                return Verdict::Mismatch(format!("another instruction at {there} than at {at}"));
            }
        } else if let Some(target) = before.flow().target()
            && target.offset_within(subject.case.from, subject.window.len() as u64).is_none()
            && !reached(target, subject.case.to.add(to as u64), &code[to..], literals)
        {
            return Verdict::Mismatch(format!("nothing at {there} goes to {target}"));
        }
    }
    Verdict::Same
}

/// The relocated instruction is the same one.
fn stays(inst: &Inst) -> bool {
    matches!(
        inst.flow(),
        Flow::Next | Flow::JumpIndirect | Flow::CallIndirect | Flow::Return | Flow::Undefined | Flow::Syscall
    )
}

fn same(before: &Inst, after: &Inst) -> bool {
    let [raw_before, raw_after] = [before, after].map(raw);
    let operand = |inst: &Inst| inst.rip_operand().map(|operand| (operand.target, operand.wraps));
    let masked = |inst: &Inst| {
        let mut bytes = inst.bytes().to_vec();
        if let Some(operand) = inst.rip_operand() {
            bytes[usize::from(operand.field)..][..4].fill(0);
        }
        bytes
    };
    masked(before) == masked(after)
        && operand(before) == operand(after)
        && raw_before.code() == raw_after.code()
        // iced compares operands with the absolute address of a RIP-relative one.
        && raw_before == raw_after
}

/// An operand beyond 2 GiB: `code` moves its address to the destination, and loads through that unless the address is
/// all that was asked for.
fn through_destination(before: &Inst, first: &Inst, code: &[u8]) -> bool {
    let Some(operand) = before.rip_operand() else { return false };
    let [before, address] = [raw(before), raw(first)];
    let destination = before.op0_register();
    let full = destination.full_register();
    let (whole, low) = (operand.target.0, u64::from(operand.target.0 as u32));
    let moves = |value| address.op0_register().full_register() == full && address.immediate(1) == value;
    if before.mnemonic() == Mnemonic::Lea {
        return match address.code() {
            Code::Mov_r64_imm64 => destination == full && moves(whole),
            Code::Mov_r32_imm32 => destination == full.full_register32() && moves(low),
            _ => false,
        };
    }
    let Ok(load) = decode(first.next(), &code[first.bytes().len()..]) else { return false };
    let load = raw(&load);
    address.code() == Code::Mov_r64_imm64
        && moves(whole)
        && load.code() == before.code()
        && load.op0_register() == destination
        && load.op1_kind() == OpKind::Memory
        && (load.memory_base(), load.memory_index()) == (full, Register::None)
        && load.memory_displacement64() == 0
        && load.segment_prefix() == Register::None
}

fn raw(inst: &Inst) -> Instruction {
    Decoder::with_ip(64, inst.bytes(), inst.addr().0, DecoderOptions::NONE).decode()
}

/// Some branch of the code behind `at` goes to `target`, directly or through a literal.
fn reached(target: CodeAddr, mut at: CodeAddr, mut code: &[u8], literals: &[u8]) -> bool {
    let literal = literals.chunks(8).any(|literal| literal == target.0.to_le_bytes());
    while let Ok(inst) = decode(at, code) {
        let through_literal = literal && inst.rip_operand().is_some();
        if inst.flow().target() == Some(target) || through_literal {
            return true;
        }
        code = &code[inst.bytes().len()..];
        at = inst.next();
    }
    false
}

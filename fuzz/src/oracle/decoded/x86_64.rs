//! x86-64. What an emulator does not know are VEX, EVEX and the newest instructions.

use grapnel_arch::x86_64::{Flow, Inst, decode};
use grapnel_relocator::CodeAddr;
use iced_x86::{
    Code, Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register,
    UsedRegister,
};

use super::ahead;
use crate::oracle::{Subject, Verdict};

/// Every instruction that does not branch has become one that is the same in all but the bytes of its displacement, and
/// every branch out of the window has its target somewhere in the code.
pub(super) fn judge(subject: &Subject<'_>) -> Verdict {
    let map = subject.relocated.map();
    let (code, literals) = (&subject.relocated.bytes()[..map.code_len()], subject.relocated.literals());
    for (number, (from, to)) in
        map.iter().enumerate().filter(|&(_, (from, _))| from < subject.window.code_len())
    {
        let at = subject.case.from.add(from as u64);
        let Ok(before) = decode(at, &subject.original()[from..]) else {
            return Verdict::Mismatch(format!("no instruction at {at} in the window"));
        };
        let there = subject.case.to.add(to as u64);
        let Ok(after) = decode(there, &code[to..]) else {
            return Verdict::Mismatch(format!("no instruction at {there}, for {at}"));
        };
        let end = map.iter().nth(number + 1).map_or(code.len(), |(_, end)| end);
        if is_call(&before) && matches!(after.flow(), Flow::Jump { .. }) {
            if !returns_past(subject, &before, there, &code[to..end]) {
                return Verdict::Mismatch(format!(
                    "what is at {there} is no call that returns past the code, for {at}"
                ));
            }
        } else if stays(&before) {
            if !same(&before, &after) && !through_register(subject, &before, there, &code[to..end]) {
                return Verdict::Mismatch(format!(
                    "another instruction at {there} than at {at}, or through a register that matters"
                ));
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

fn is_call(inst: &Inst) -> bool {
    matches!(inst.flow(), Flow::Call { .. } | Flow::CallIndirect)
}

/// A call that is the window's last instruction and leaves the original return address on the stack: `code` is all that it
/// became. It calls what puts that address in the place of its own, and goes to the callee.
fn returns_past(subject: &Subject<'_>, before: &Inst, there: CodeAddr, code: &[u8]) -> bool {
    let insts: Vec<Instruction> =
        Decoder::with_ip(64, code, there.0, DecoderOptions::NONE).into_iter().collect();
    let [over, low, high, go @ .., call] = insts.as_slice() else { return false };
    let link = before.next();
    let stores = |inst: &Instruction, displacement: i64, value: u64| {
        at_stack(inst, Code::Mov_rm32_imm32, displacement) && inst.immediate32() == value as u32
    };
    link == subject.case.from.add(subject.window.len() as u64)
        && !subject.case.options.shadow_stack
        && (over.code(), over.near_branch_target()) == (Code::Jmp_rel8_64, call.ip())
        && (call.code(), call.near_branch_target()) == (Code::Call_rel32_64, low.ip())
        && stores(low, 0, link.0)
        && stores(high, 4, link.0 >> 32)
        && goes_to_callee(subject, before, go)
}

fn goes_to_callee(subject: &Subject<'_>, call: &Inst, go: &[Instruction]) -> bool {
    let mut jump = raw(call);
    match (call.flow().target(), go) {
        (Some(target), [go]) if go.code() == Code::Jmp_rel32_64 => go.near_branch_target() == target.0,
        (Some(target), [go]) => {
            let (relocated, literal) = (subject.relocated, CodeAddr(go.ip_rel_memory_address()));
            let at = literal.offset_within(subject.case.to, relocated.bytes().len() as u64);
            let value = at.and_then(|at| relocated.bytes().get(at as usize..)?.first_chunk());
            go.code() == Code::Jmp_rm64
                && go.is_ip_rel_memory_operand()
                && at.is_some_and(|at| at as usize >= relocated.map().code_len())
                && value == Some(&target.0.to_le_bytes())
        }
        (None, _) if jump.code() != Code::Call_rm64 => false,
        (None, [go]) => {
            jump.set_code(Code::Jmp_rm64);
            // iced compares operands with the absolute address of a RIP-relative one.
            jump == *go && (jump.is_ip_rel_memory_operand() || jump.op0_kind() == OpKind::Register)
        }
        (None, [address, go]) => {
            let base = address.op0_register();
            let is_free = free(subject, &jump, base) && !used(&jump, base);
            jump.set_code(Code::Jmp_rm64);
            address.code() == Code::Mov_r64_imm64
                && call.rip_operand().is_some_and(|operand| address.immediate64() == operand.target.0)
                && same_through(&jump, go, base)
                && is_free
        }
        _ => false,
    }
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

/// An operand beyond 2 GiB: `code` is all that the instruction became. It moves the operand's address to a register, and
/// does the same through that; around it the register may be kept on the stack, below the red zone.
fn through_register(subject: &Subject<'_>, before: &Inst, there: CodeAddr, code: &[u8]) -> bool {
    let Some(operand) = before.rip_operand() else { return false };
    let before = raw(before);
    let insts: Vec<Instruction> =
        Decoder::with_ip(64, code, there.0, DecoderOptions::NONE).into_iter().collect();
    let moves =
        |inst: &Instruction| inst.code() == Code::Mov_r64_imm64 && inst.immediate64() == operand.target.0;
    match insts.as_slice() {
        [address] if before.mnemonic() == Mnemonic::Lea => {
            address.op0_register() == before.op0_register()
                && (moves(address)
                    || address.code() == Code::Mov_r32_imm32
                        && address.immediate32() == operand.target.0 as u32)
        }
        [address, operation] => {
            let base = address.op0_register();
            moves(address)
                && same_through(&before, operation, base)
                && (overwritten(&before, base) || !used(&before, base) && free(subject, &before, base))
        }
        [down, push, address, inner @ .., pop, up] => {
            let base = address.op0_register();
            let (ends, kept) = match inner {
                [operation] => (128, same_through(&before, operation, base)),
                [operation, pop] if before.code() == Code::Push_rm64 => {
                    (120, same_through(&before, operation, base) && at_stack(pop, Code::Pop_rm64, 128))
                }
                [push, operation] if before.code() == Code::Pop_rm64 => {
                    (136, same_through(&before, operation, base) && at_stack(push, Code::Push_rm64, 136))
                }
                _ => return false,
            };
            kept && moves(address)
                && at_stack(down, Code::Lea_r64_m, -128)
                && (push.code(), push.op0_register()) == (Code::Push_r64, base)
                && (pop.code(), pop.op0_register()) == (Code::Pop_r64, base)
                && at_stack(up, Code::Lea_r64_m, ends)
                && !used(&before, base)
                && (inner.len() == 2 || !used(&before, Register::RSP))
        }
        _ => false,
    }
}

/// The register is said to be changed, and nobody reads it behind the instruction: R11 is the linker's where another
/// function is entered through memory.
fn free(subject: &Subject<'_>, inst: &Instruction, base: Register) -> bool {
    let enters = match inst.code() {
        Code::Call_rm64 => true,
        Code::Jmp_rm64 => subject.case.options.entry,
        _ => false,
    };
    let behind = inst.next_ip().wrapping_sub(subject.case.from.0) as usize;
    subject.relocated.clobbers().contains(base.number() as u8)
        && (enters && base == Register::R11 || ahead::overwrites(subject.case, behind, base))
}

/// The instruction with `[base]` as its operand and no other change.
fn same_through(before: &Instruction, after: &Instruction, base: Register) -> bool {
    let mut wanted = *before;
    wanted.set_memory_base(base);
    wanted.set_memory_displacement64(0);
    wanted.set_memory_displ_size(after.memory_displ_size());
    wanted == *after
}

/// It is of this form, with `[rsp + displacement]` as its operand; a `lea` is of RSP.
fn at_stack(inst: &Instruction, code: Code, displacement: i64) -> bool {
    inst.code() == code
        && (inst.memory_base(), inst.memory_index()) == (Register::RSP, Register::None)
        && inst.memory_displacement64().cast_signed() == displacement
        && (code != Code::Lea_r64_m || inst.op0_register() == Register::RSP)
}

/// It reads or writes the register.
fn used(inst: &Instruction, register: Register) -> bool {
    InstructionInfoFactory::new()
        .info(inst)
        .used_registers()
        .iter()
        .any(|used| used.register().full_register() == register)
}

/// It writes the register whole, and does not read it.
fn overwritten(inst: &Instruction, register: Register) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let mut uses = factory.info(inst).used_registers().iter();
    let whole = |used: &UsedRegister| {
        used.access() == OpAccess::Write && (used.register().is_gpr64() || used.register().is_gpr32())
    };
    used(inst, register) && uses.all(|used| used.register().full_register() != register || whole(used))
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

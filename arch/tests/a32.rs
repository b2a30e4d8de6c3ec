//! What our own reading of A32 words says of core registers, against the operands of the decoder.

use exarmo_aarch32::{Instruction, ListFile, Mnemonic, Offset, Operand, Reg, a32 as exarmo};
use grapnel_arch::{
    CodeAddr, DecodeError,
    a32::{Flow, Form, Inst, LR, PC, SP, Unsupported, decode},
};

const AT: CodeAddr = CodeAddr(0x1_0000);

/// The core registers that the decoder names, and whether it names a label.
fn named(raw: &Instruction) -> (u16, bool) {
    let core = |reg| match reg {
        Reg::Core(register) => 1 << register.num(),
        _ => 0,
    };
    let (mut mask, mut label) = (0, false);
    for operand in raw.operands().as_slice() {
        match operand {
            Operand::Reg(operand) => {
                mask |= core(operand.reg);
                mask |= operand.modifier.and_then(|shift| shift.by).map_or(0, |by| core(Reg::Core(by)));
            }
            Operand::Mem(memory) => {
                mask |= core(memory.base);
                if let Offset::Reg { reg, .. } = memory.offset {
                    mask |= core(reg);
                }
            }
            Operand::List(list) if list.file == ListFile::Core => mask |= list.mask as u16,
            Operand::Modifier(shift) => mask |= shift.by.map_or(0, |by| core(Reg::Core(by))),
            Operand::Label { .. } => label = true,
            _ => {}
        }
    }
    (mask, label)
}

/// What the text of the instruction does not name, and the instruction yet uses.
fn implied(form: Form, raw: &Instruction, word: u32) -> u16 {
    let stack = matches!(raw.mnemonic(), Mnemonic::Push | Mnemonic::Pop | Mnemonic::Vpush | Mnemonic::Vpop);
    let links = match form {
        Form::Branch => word >> 28 == 15 || word >> 24 & 1 == 1,
        Form::BranchRegister => word >> 4 & 15 == 3,
        _ => false,
    };
    u16::from(stack) << SP | u16::from(links) << LR
}

/// The instruction, twice; `None` if both agree that it is none.
fn decoded(word: u32) -> Result<Option<(Inst, Instruction)>, String> {
    match (decode(AT, &word.to_le_bytes()), exarmo::decode_word(word)) {
        (Ok(inst), Ok(raw)) if !raw.unpredictable() => Ok(Some((inst, raw))),
        (Err(DecodeError::Undefined), Err(_)) => Ok(None),
        (Err(DecodeError::Unpredictable), Ok(raw)) if raw.unpredictable() => Ok(None),
        // STM with a base that is written back and is not the lowest of the list, which the decoder lets pass.
        (Err(DecodeError::Unpredictable), Ok(_)) if word & 0x0e30_0000 == 0x0820_0000 => Ok(None),
        (ours, _) => Err(format!("{word:08x}: decoded as {ours:?}")),
    }
}

/// Whether the word was judged.
fn judge(word: u32) -> Result<bool, String> {
    let Some((inst, raw)) = decoded(word)? else { return Ok(false) };
    let (named, label) = named(&raw);
    // A label is the PC as an operand, but in a branch it is where the branch goes.
    let label = u16::from(label && inst.form() != Form::Branch) << PC;
    let expected = named | label | implied(inst.form(), &raw, word);
    let ours = inst.uses().all();
    let differ = |what: &str| {
        let text = raw.at(AT.0);
        Err(format!("{word:08x} {text}: {what}: {ours:016b}, the decoder's {expected:016b}, {inst:?}"))
    };
    if inst.form() != Form::Supervisor && ours != expected {
        return differ("registers");
    }
    // MRC and VMRS to register 15 write the flags.
    let flags = word & 0x0f10_f010 == 0x0e10_f010;
    let uses_pc = expected >> PC & 1 == 1 && !flags;
    let refused = matches!(
        inst.flow(),
        Flow::Unsupported(Unsupported::UsesPc | Unsupported::ExceptionReturn | Unsupported::System)
    );
    let accounts = inst.pc_reads().any()
        || inst.uses().writes >> PC & 1 == 1
        || matches!(inst.flow(), Flow::Jump { .. })
        || refused;
    if uses_pc && !accounts {
        return differ("use of the PC");
    }
    if inst.pc_reads().any() && !uses_pc {
        return differ("no use of the PC");
    }
    let branch = raw.at(AT.0).branch();
    let leaves = match inst.flow() {
        Flow::Next | Flow::Undefined | Flow::Breakpoint => Some(false),
        // Refused, whether it leaves or not.
        Flow::Unsupported(_) => None,
        _ => Some(true),
    };
    if leaves.is_some_and(|leaves| leaves != branch.kind.sets_the_pc()) {
        return differ("flow");
    }
    if branch.target.is_some() && branch.target != inst.flow().target().map(|target| target.0) {
        return differ("target");
    }
    Ok(true)
}

fn judge_all(words: impl Iterator<Item = u32>) -> usize {
    let mut judged = 0;
    let mut wrong = Vec::new();
    for word in words {
        match judge(word) {
            Ok(was) => judged += usize::from(was),
            Err(error) => wrong.push(error),
        }
    }
    assert!(wrong.is_empty(), "{}: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
    judged
}

fn random(seed: u64) -> impl Iterator<Item = u32> {
    let mut state = seed;
    core::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32) as u32
    })
}

/// How many words each test takes; `GRAPNEL_WORDS` asks for another number.
fn count() -> usize {
    std::env::var("GRAPNEL_WORDS").ok().and_then(|count| count.parse().ok()).unwrap_or(500_000)
}

#[test]
fn random_words() {
    let judged = judge_all(random(1).take(count()));
    assert!(judged > count() / 4, "{judged}");
}

#[test]
fn words_with_the_program_counter_in_a_field() {
    let with = |(number, word): (usize, u32)| word | 15 << [0, 8, 12, 16][number % 4];
    let judged = judge_all(random(2).take(count()).enumerate().map(with));
    assert!(judged > count() / 8, "{judged}");
}

//! The code of a plan for one destination.
//!
//! Layout: the instructions in order, the jump back, the copies of constants, then the literals. A branch to another
//! instruction of the window, or a load of a literal, leaves a fixup, which is filled in when every place is known.
//! Which form an instruction takes depends on the destination and on the plan's longest possible length only, never on the places
//! of others, so nothing grows after it was laid out.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr, Isa,
    a32::{
        Cond, INST_LEN, Inst, LR, PC,
        encode::{
            self, Branch24, Offset12, b, bl, blx, blx_register, bx_register, ldr_literal, pop, pop_one, push,
            push_one, with_displacement, with_offset,
        },
        field, pc,
    },
};

use super::{
    Item, MAX_WORDS,
    plan::{Base, Dest, Lowering, Plan},
    redirect::can_be_at,
    scratch::{Scratch, Way},
    store::Code,
};
use crate::{
    Error, PcMap, Registers, Relocated,
    plan::{Callee, LandingPads, MAX_EMITTED, keep_apart},
};

impl Plan {
    pub(crate) fn emit(&self, to: CodeAddr) -> Result<Relocated, Error> {
        can_be_at(to, self.max_len())?;
        keep_apart((self.from, self.window_len), (to, self.max_len()))?;
        let mut emitter = Emitter::new(self, to);
        for (item, lowering) in &self.items {
            emitter.starts.push(emitter.code.len());
            if let Item::Code(inst) = item {
                emitter.map.push(inst.addr().displacement_from(self.from) as usize, emitter.code.len());
                emitter.instruction(inst, lowering);
            }
        }
        if let Some(resume) = self.resume {
            emitter.map.push(resume.displacement_from(self.from) as usize, emitter.code.len());
            emitter.jump(Cond::ALWAYS, Dest::Outside(resume));
        }
        Ok(emitter.finish())
    }
}

/// What a fixup's field counts to.
#[derive(Clone, Copy)]
enum Label {
    /// A word of the window, by its number.
    Item(usize),
    Literal(usize),
    /// The copy of the constant at an offset of the window.
    Copy(usize),
}

/// An instruction whose field is to be filled in.
#[derive(Clone, Copy)]
struct Fixup {
    at: usize,
    label: Label,
}

#[derive(Clone, Copy)]
enum Pooled {
    Value(u32),
    /// The address of the copy of the constant at `offset`, less what the instruction adds to it.
    Copy {
        offset: usize,
        added: u32,
    },
}

/// A literal for each instruction, a second one for a call at the window's end, and one for the jump back.
const MAX_LITERALS: usize = MAX_WORDS + 2;

struct Emitter<'a> {
    plan: &'a Plan,
    to: CodeAddr,
    code: ArrayVec<u8, MAX_EMITTED>,
    starts: ArrayVec<usize, MAX_WORDS>,
    literals: ArrayVec<Pooled, MAX_LITERALS>,
    fixups: ArrayVec<Fixup, MAX_LITERALS>,
    map: PcMap,
    indirect: LandingPads,
}

/// One instruction being written, with its one literal.
struct WithLiteral<'a, 'p> {
    emitter: &'a mut Emitter<'p>,
    value: CodeAddr,
}

impl Code for WithLiteral<'_, '_> {
    fn word(&mut self, word: u32) {
        self.emitter.word(word);
    }

    fn literal(&mut self, cond: Cond, register: u8) {
        self.emitter.load(cond, register, Pooled::Value(self.value.0 as u32));
    }
}

impl<'a> Emitter<'a> {
    fn new(plan: &'a Plan, to: CodeAddr) -> Self {
        Self {
            plan,
            to,
            code: ArrayVec::new(),
            starts: ArrayVec::new(),
            literals: ArrayVec::new(),
            fixups: ArrayVec::new(),
            map: PcMap::default(),
            indirect: LandingPads::new(),
        }
    }

    fn instruction(&mut self, inst: &Inst, lowering: &Lowering) {
        let cond = inst.cond();
        match lowering {
            Lowering::Data => {}
            Lowering::Copy => self.word(inst.word()),
            Lowering::Jump(dest) => self.jump(cond, *dest),
            Lowering::JumpThumb(target) => self.jump_through_literal(cond, *target, true),
            Lowering::Call { target, thumb } => self.call(cond, *target, *thumb),
            Lowering::LastCall(callee, link) => self.last_call(cond, *callee, *link),
            Lowering::Value { register, value } => {
                self.load(cond, *register, Pooled::Value(value.0 as u32));
            }
            Lowering::Sum(sum) => sum.emit(cond, |word| self.word(word)),
            Lowering::Load { register, offset } => {
                self.word(ldr_literal(cond, *register, Offset12::ZERO));
                self.fixup(Label::Copy(*offset));
            }
            Lowering::Replace(base, scratch) => self.replace(inst, *base, *scratch),
            Lowering::StoreList(store) => {
                store.emit(cond, &mut WithLiteral { emitter: self, value: pc(inst.addr()) });
            }
            Lowering::StoreToStack(store) => {
                store.emit(cond, &mut WithLiteral { emitter: self, value: pc(inst.addr()) });
            }
        }
    }

    fn word(&mut self, word: u32) {
        self.code.extend(word.to_le_bytes());
    }

    /// The address of the next instruction written.
    fn here(&self) -> CodeAddr {
        self.to.add(self.code.len() as u64)
    }

    /// The instruction that was just written counts to `label`.
    fn fixup(&mut self, label: Label) {
        self.fixups.push(Fixup { at: self.code.len() - INST_LEN, label });
    }

    /// `ldr<c> register, literal`
    fn load(&mut self, cond: Cond, register: u8, value: Pooled) {
        self.word(ldr_literal(cond, register, Offset12::ZERO));
        self.fixup(Label::Literal(self.literals.len()));
        self.literals.push(value);
    }

    /// The displacement to `target` from here, if the plan counts it as near.
    fn near(&self, target: CodeAddr) -> Option<Branch24> {
        let counted = self.plan.near(target).contains(self.to);
        Branch24::between(self.here(), target).filter(|_| counted)
    }

    fn jump(&mut self, cond: Cond, dest: Dest) {
        match dest {
            Dest::Inside(number) => {
                self.word(b(cond, Branch24::ZERO));
                self.fixup(Label::Item(number));
            }
            Dest::Outside(target) => match self.near(target) {
                Some(displacement) => self.word(b(cond, displacement)),
                None => self.jump_through_literal(cond, target, false),
            },
        }
    }

    /// `ldr<c> pc, literal`. Bit 0 of what is loaded selects T32 (DDI 0406, A2.3.1, LoadWritePC).
    fn jump_through_literal(&mut self, cond: Cond, target: CodeAddr, thumb: bool) {
        self.load(cond, PC, Pooled::Value(target.0 as u32 | u32::from(thumb)));
        self.indirect.push(target);
    }

    /// LR gets the address behind the call, here as in any other function.
    fn call(&mut self, cond: Cond, target: CodeAddr, thumb: bool) {
        let halfword = thumb && target.0 & 2 != 0;
        let near = self.near(CodeAddr(target.0 & !3));
        match near {
            Some(displacement) if thumb => self.word(blx(displacement, halfword)),
            Some(displacement) => self.word(bl(cond, displacement)),
            None => {
                self.load(cond, LR, Pooled::Value(target.0 as u32 | u32::from(thumb)));
                self.word(blx_register(cond, LR));
                self.indirect.push(target);
            }
        }
    }

    /// LR becomes the original's, and the rest is a jump.
    fn last_call(&mut self, cond: Cond, callee: Callee, link: CodeAddr) {
        self.load(cond, LR, Pooled::Value(link.0 as u32));
        match callee {
            Callee::A32(target) => self.jump(cond, Dest::Outside(target)),
            Callee::T32(target) => self.jump_through_literal(cond, target, true),
            Callee::Register(register) => self.word(bx_register(cond, register)),
        }
    }

    /// The instruction with the register where the PC was, and what that takes around it.
    fn replace(&mut self, inst: &Inst, base: Base, scratch: Scratch) {
        let Scratch { register, way } = scratch;
        let cond = inst.cond();
        let value = match base {
            Base::Pc => Pooled::Value(pc(inst.addr()).0 as u32),
            Base::Copy { offset } => {
                let target = self.plan.from.add(offset as u64);
                Pooled::Copy { offset, added: target.displacement_from(pc(inst.addr())) as u32 }
            }
        };
        let word = inst.pc_reads().replaced(inst.word(), register);
        match way {
            Way::Own | Way::Free => {
                self.load(cond, register, value);
                self.word(word);
            }
            Way::Spill => {
                // The flags are those of the instruction by the time of the last step.
                let skipped = if inst.sets_flags() { cond.inverted() } else { None };
                let (cond, word) = match skipped {
                    Some(inverted) => {
                        let over = Branch24::between(CodeAddr(0), CodeAddr(5 * INST_LEN as u64));
                        self.word(b(inverted, over.unwrap_or(Branch24::ZERO)));
                        (Cond::ALWAYS, field(word, 28, Cond::ALWAYS.bits()))
                    }
                    None => (cond, word),
                };
                self.word(push_one(cond, register));
                self.load(cond, register, value);
                self.word(word);
                self.word(pop_one(cond, register));
            }
            Way::SpillAndLeave => {
                let above = register + 1;
                self.word(push(cond, 1 << register | 1 << above));
                self.load(cond, register, value);
                self.word(field(word, 12, register));
                self.word(encode::str(cond, register, 13, Offset12::new(4).unwrap_or(Offset12::ZERO)));
                self.word(pop(cond, 1 << register | 1 << PC));
            }
        }
    }

    fn finish(mut self) -> Relocated {
        let code_len = self.code.len();
        self.map.end_code(code_len);
        let copies = &self.plan.copies;
        // Doublewords stay where they were in 8 bytes: some processors ask for that.
        let original = self.plan.from.add(copies.offset as u64);
        if !copies.bytes.is_empty() && (self.here().0 ^ original.0) & 4 != 0 {
            self.word(0);
        }
        let literals_at = self.code.len();
        self.code.extend(copies.bytes.iter().copied());
        let pool_at = self.code.len();
        let copy_at = |offset: usize| literals_at + offset - self.plan.copies.offset;
        for literal in &self.literals {
            let value = match *literal {
                Pooled::Value(value) => value,
                Pooled::Copy { offset, added } => {
                    (self.to.add(copy_at(offset) as u64).0 as u32).wrapping_sub(added)
                }
            };
            self.code.extend(value.to_le_bytes());
        }
        for Fixup { at, label } in self.fixups {
            let target = match label {
                Label::Item(number) => self.starts[number],
                Label::Literal(number) => pool_at + number * INST_LEN,
                Label::Copy(offset) => copy_at(offset),
            };
            let word = u32::from_le_bytes(self.code[at..at + INST_LEN].try_into().unwrap_or_default());
            let (at_addr, target) = (CodeAddr(at as u64), CodeAddr(target as u64));
            let filled = match label {
                Label::Item(_) => Branch24::between(at_addr, target).map(|to| with_displacement(word, to)),
                _ => Offset12::between(at_addr, target).map(|to| with_offset(word, to)),
            };
            // The whole code is shorter than what either field reaches.
            let filled = filled.unwrap_or(word);
            self.code[at..at + INST_LEN].copy_from_slice(&filled.to_le_bytes());
        }
        Relocated {
            bytes: self.code,
            literals_at,
            map: self.map,
            clobbers: self
                .plan
                .items
                .iter()
                .map(|(_, lowering)| lowering.clobbers())
                .fold(Registers::none(Isa::A32), Registers::union),
            landing_pads: self.indirect,
            resumes: self.plan.resume.is_some(),
        }
    }
}

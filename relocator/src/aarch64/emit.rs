//! The code of a plan for one destination.
//!
//! Layout: the instructions in order, the jump back, then the literals, at a multiple of 8. A branch to another
//! instruction of the window, or a use of a literal, leaves a fixup, which is filled in when every place is known. Which
//! form an instruction takes depends on the place that it has come to alone, so nothing grows after it was laid out.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr, Isa,
    aarch64::{
        Field, INST_LEN, Inst, LINK, Literal, Low12, NOP, Page21, Rel21, add_low12, adr, adrp, b, bl, blr,
        br, inverted, ldr_literal, load_through, pop, push,
    },
};

use super::{
    MAX_WORDS, culprit,
    liveness::Free,
    plan::{Base, Dest, LITERAL_ALIGN, Lowering, Plan},
};
use crate::{
    Error, PcMap, Registers, Relocated,
    plan::{LandingPads, MAX_EMITTED, keep_apart},
};

impl Plan {
    pub(crate) fn emit(&self, to: CodeAddr) -> Result<Relocated, Error> {
        if !to.0.is_multiple_of(INST_LEN as u64) {
            return Err(Error::Misaligned { at: to, align: INST_LEN as u64 });
        }
        keep_apart((self.from, self.window_len), (to, self.max_len()))?;
        let mut emitter = Emitter::new(self, to);
        for (number, (inst, lowering)) in self.items.iter().enumerate() {
            emitter.starts.push(emitter.code.len());
            emitter.map.push(inst.addr().displacement_from(self.from) as usize, emitter.code.len());
            emitter.instruction(number, inst, lowering).map_err(|NoScratch| no_scratch(inst))?;
        }
        if let (Some(resume), Some((last, _))) = (self.resume, self.items.last()) {
            emitter.map.push(resume.displacement_from(self.from) as usize, emitter.code.len());
            emitter.jump(Place::End, Dest::Outside(resume)).map_err(|NoScratch| no_scratch(last))?;
        }
        Ok(emitter.finish())
    }
}

/// No register may hold an address that is needed.
struct NoScratch;

fn no_scratch(inst: &Inst) -> Error {
    Error::NoScratch { culprit: culprit(inst) }
}

/// What leaves for elsewhere.
#[derive(Clone, Copy)]
enum Place {
    /// An instruction, by its number.
    Inst(usize),
    /// The window's end.
    End,
}

/// What a fixup's field counts to.
#[derive(Clone, Copy)]
enum Label {
    Inst(usize),
    /// A literal, by its place among them.
    Literal(usize),
}

/// A field of an instruction that is to be filled in.
#[derive(Clone, Copy)]
struct Fixup {
    at: usize,
    field: Field,
    label: Label,
}

/// The most literals: one by each instruction and one by the jump back, of 16 bytes at most.
const MAX_LITERALS: usize = (MAX_WORDS + 1) * 16;

struct Emitter<'a> {
    plan: &'a Plan,
    to: CodeAddr,
    code: ArrayVec<u8, MAX_EMITTED>,
    starts: ArrayVec<usize, MAX_WORDS>,
    literals: ArrayVec<u8, MAX_LITERALS>,
    fixups: ArrayVec<Fixup, { MAX_WORDS + 1 }>,
    map: PcMap,
    indirect: LandingPads,
    clobbers: Registers,
    /// The registers that hold nothing, once one was needed.
    free: Option<Free>,
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
            clobbers: Registers::none(Isa::Aarch64),
            free: None,
        }
    }

    fn instruction(&mut self, number: usize, inst: &Inst, lowering: &Lowering) -> Result<(), NoScratch> {
        match *lowering {
            Lowering::Copy => self.word(inst.word()),
            Lowering::Nothing => self.word(NOP),
            Lowering::Address { register, target } => self.address(register, target),
            Lowering::Page { register, target } => match Page21::between(self.here(), target) {
                Some(pages) => self.word(adrp(register, pages)),
                None => self.literal_address(register, target),
            },
            Lowering::Load { literal, register, base, target } => {
                self.load(inst, literal, (register, base), target)?;
            }
            Lowering::Carried(number) => {
                let at = self.literals.len();
                self.literals.extend(self.plan.constants[number].iter().copied());
                self.fixup(inst.word(), Field::Branch19, Label::Literal(at));
            }
            Lowering::Jump(dest) => self.jump(Place::Inst(number), dest)?,
            Lowering::Cond(field, dest) => self.cond(number, inst, field, dest)?,
            Lowering::Call(target) => self.call(target),
        }
        Ok(())
    }

    fn word(&mut self, word: u32) {
        self.code.extend(word.to_le_bytes());
    }

    /// The address of the next instruction to be written.
    fn here(&self) -> CodeAddr {
        self.to.add(self.code.len() as u64)
    }

    /// An instruction whose field counts to a label.
    fn fixup(&mut self, word: u32, field: Field, label: Label) {
        self.fixups.push(Fixup { at: self.code.len(), field, label });
        self.word(word);
    }

    /// The instruction with this field counting to `target`, if that is in reach.
    fn direct(&mut self, word: u32, field: Field, target: CodeAddr) -> bool {
        let word = field.set(word, target.displacement_from(self.here()));
        if let Some(word) = word {
            self.word(word);
        }
        word.is_some()
    }

    /// `ldr xd, =target`.
    fn literal_address(&mut self, register: u8, target: CodeAddr) {
        let at = self.literals.len();
        self.literals.extend(target.0.to_le_bytes());
        self.fixup(ldr_literal(register), Field::Branch19, Label::Literal(at));
    }

    fn address(&mut self, register: u8, target: CodeAddr) {
        if let Some(displacement) = Rel21::between(self.here(), target) {
            return self.word(adr(register, displacement));
        }
        match Page21::between(self.here(), target) {
            Some(pages) => {
                self.word(adrp(register, pages));
                self.add(register, Low12::of(target));
            }
            None => self.literal_address(register, target),
        }
    }

    fn add(&mut self, register: u8, low: Low12) {
        if !low.is_zero() {
            self.word(add_low12(register, low));
        }
    }

    fn load(
        &mut self,
        inst: &Inst,
        literal: Literal,
        (register, base): (u8, Base),
        target: CodeAddr,
    ) -> Result<(), NoScratch> {
        if self.direct(inst.word(), Field::Branch19, target) {
            return Ok(());
        }
        let through = match base {
            Base::Missing => return Err(NoScratch),
            Base::Free(through) => through,
            Base::Spilled(through) => {
                self.word(push(through));
                through
            }
        };
        let low = Low12::of(target);
        match (Page21::between(self.here(), target), load_through(literal, register, through, low)) {
            (Some(pages), Some(load)) => {
                self.word(adrp(through, pages));
                self.word(load);
            }
            // The load's field counts in units larger than the literal is aligned to.
            (Some(pages), None) => {
                self.word(adrp(through, pages));
                self.add(through, low);
                self.load_at(literal, register, through);
            }
            (None, _) => {
                self.literal_address(through, target);
                self.load_at(literal, register, through);
            }
        }
        match base {
            Base::Spilled(through) => self.word(pop(through)),
            Base::Free(through) if !(literal.is_general() && through == register) => self.clobber(through),
            _ => {}
        }
        Ok(())
    }

    fn load_at(&mut self, literal: Literal, register: u8, base: u8) {
        if let Some(load) = load_through(literal, register, base, Low12::ZERO) {
            self.word(load);
        }
    }

    fn clobber(&mut self, register: u8) {
        self.clobbers = self.clobbers.union(Registers::one(Isa::Aarch64, register));
    }

    /// A register for the way out of a place, beyond the reach of a branch's field.
    fn scratch(&mut self, place: Place) -> Result<u8, NoScratch> {
        let free = self.free.get_or_insert_with(|| self.plan.free());
        let scratch = match place {
            Place::Inst(number) => free.at_target(number),
            Place::End => free.for_resume(),
        };
        scratch.ok_or(NoScratch)
    }

    fn jump(&mut self, place: Place, dest: Dest) -> Result<(), NoScratch> {
        match dest {
            Dest::Inside(number) => self.fixup(b(), Field::Branch26, Label::Inst(number)),
            Dest::Outside(target) => {
                if self.direct(b(), Field::Branch26, target) {
                    return Ok(());
                }
                let scratch = self.scratch(place)?;
                self.literal_address(scratch, target);
                self.word(br(scratch));
                self.clobber(scratch);
                self.indirect.push(target);
            }
        }
        Ok(())
    }

    /// Beyond the reach of its field it goes around a jump if it is not taken, or, where it can't be inverted, to one of
    /// its own if it is.
    fn cond(&mut self, number: usize, inst: &Inst, field: Field, dest: Dest) -> Result<(), NoScratch> {
        match dest {
            Dest::Inside(number) => {
                self.fixup(inst.word(), field, Label::Inst(number));
                return Ok(());
            }
            Dest::Outside(target) if self.direct(inst.word(), field, target) => return Ok(()),
            Dest::Outside(..) => {}
        }
        match inverted(inst.word()) {
            Some(word) => self.around(word, field, |this| this.jump(Place::Inst(number), dest)),
            None => {
                self.forward(inst.word(), field, 2 * INST_LEN);
                self.around(b(), Field::Branch26, |this| this.jump(Place::Inst(number), dest))
            }
        }
    }

    /// A branch over what `between` writes.
    fn around(
        &mut self,
        word: u32,
        field: Field,
        between: impl FnOnce(&mut Self) -> Result<(), NoScratch>,
    ) -> Result<(), NoScratch> {
        let at = self.code.len();
        self.word(word);
        between(self)?;
        self.set(at, field, self.code.len());
        Ok(())
    }

    /// A branch to a place `distance` bytes ahead of itself.
    fn forward(&mut self, word: u32, field: Field, distance: usize) {
        let at = self.code.len();
        self.word(word);
        self.set(at, field, at + distance);
    }

    fn call(&mut self, target: CodeAddr) {
        if !self.direct(bl(), Field::Branch26, target) {
            self.literal_address(LINK, target);
            self.word(blr(LINK));
            self.indirect.push(target);
        }
    }

    /// Lets the field of the instruction at one place count to another. Both lie in the code, which is shorter than any
    /// field's reach.
    fn set(&mut self, at: usize, field: Field, target: usize) {
        if let Some(bytes) = self.code[at..].first_chunk_mut::<INST_LEN>()
            && let Some(word) = field.set(u32::from_le_bytes(*bytes), target as i64 - at as i64)
        {
            *bytes = word.to_le_bytes();
        }
    }

    fn finish(mut self) -> Relocated {
        let code_len = self.code.len();
        self.map.end_code(code_len);
        if !self.literals.is_empty() {
            // Zeros, which are `udf`.
            while !self.here().0.is_multiple_of(LITERAL_ALIGN) {
                self.code.push(0);
            }
        }
        let literals_at = self.code.len();
        self.code.extend(self.literals.iter().copied());
        for Fixup { at, field, label } in self.fixups.clone() {
            let target = match label {
                Label::Inst(number) => self.starts[number],
                Label::Literal(literal) => literals_at + literal,
            };
            self.set(at, field, target);
        }
        Relocated {
            bytes: self.code,
            literals_at,
            map: self.map,
            clobbers: self.clobbers,
            landing_pads: self.indirect,
            resumes: self.plan.resume.is_some(),
        }
    }
}

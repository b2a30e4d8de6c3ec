//! The code of a plan for one destination.
//!
//! Layout: the instructions in order, the jump back, then the literals, at a multiple of 4. A branch to another
//! instruction of the window, or a use of a literal, leaves a fixup, which is filled in when every place is known. Which
//! form an instruction takes depends on the destination and on the plan's longest possible length only, never on the
//! places of others, so nothing grows after it was laid out. Fields counted from the aligned PC are filled in from the
//! real addresses, so the destination may be any even one.
//!
//! No instruction here changes a flag but copies of the original's. A register that is borrowed is kept on the stack
//! meanwhile, above SP.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr, Isa,
    a32::{Cond, LR},
    t32::{
        Inst, Literal, LiteralField, LiteralForm, Modified, Rel6, Rel8, Rel20, Rel24, Rel24By4, add_modified,
        add_narrow, add_twice, b_rel8, b_rel20, b_rel24, bl_rel24, blx_register, blx_rel24, bx_register,
        compare_zero, it_of_one, ldr_literal, load_byte_at, load_half_at, load_literal, load_through,
        load_word, orr_modified, pop, pop_pc, push, store_word_sp,
    },
};

use super::{
    MAX_INSTS,
    plan::{Copied, Dest, Guard, Item, LITERAL_ALIGN, Lowering, Plan},
    window::can_be_at,
};
use crate::{
    Error, PcMap, Registers, Relocated,
    plan::{Callee, LandingPads, MAX_EMITTED, keep_apart},
};

const PC: u8 = 15;

/// What is between the code and the literals: `udf #0`.
const UDF: u16 = 0xde00;

/// The most literals: two by each instruction, and one by the jump back.
const MAX_LITERALS: usize = 2 * MAX_INSTS + 1;

impl Plan {
    pub(crate) fn emit(&self, to: CodeAddr) -> Result<Relocated, Error> {
        can_be_at(to, self.max_len())?;
        keep_apart((self.from, self.window_len), (to, self.max_len()))?;
        let mut emitter = Emitter::new(self, to);
        for item in &self.items {
            emitter.starts.push(emitter.code.len());
            if item.mapped {
                emitter.map.push(item.inst.addr().displacement_from(self.from) as usize, emitter.code.len());
            }
            emitter.item(item);
        }
        if let Some(resume) = self.resume {
            emitter.map.push(resume.displacement_from(self.from) as usize, emitter.code.len());
            emitter.jump(Dest::Outside(resume));
        }
        Ok(emitter.finish())
    }
}

/// A field to be filled in.
#[derive(Clone, Copy)]
struct Fixup {
    /// Where its instruction begins.
    at: usize,
    kind: FixupKind,
}

#[derive(Clone, Copy)]
enum FixupKind {
    /// `b.w` to an instruction of the window.
    Jump(usize),
    /// `b<c>.w` to one.
    Cond(Cond, usize),
    /// The offset of a literal, by its number.
    Literal(usize, LiteralField),
}

struct Emitter<'a> {
    plan: &'a Plan,
    to: CodeAddr,
    code: ArrayVec<u8, MAX_EMITTED>,
    starts: ArrayVec<usize, MAX_INSTS>,
    literals: ArrayVec<u32, MAX_LITERALS>,
    fixups: ArrayVec<Fixup, MAX_LITERALS>,
    map: PcMap,
    indirect: LandingPads,
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

    fn item(&mut self, item: &Item) {
        match item.guard {
            Guard::None => self.lowering(&item.inst, &item.lowering),
            Guard::It(cond) => {
                self.halfwords(&it_of_one(cond));
                self.lowering(&item.inst, &item.lowering);
            }
            Guard::Over(cond) => {
                let hop = self.hop();
                self.lowering(&item.inst, &item.lowering);
                self.over(hop, cond);
            }
        }
    }

    fn lowering(&mut self, inst: &Inst, lowering: &Lowering) {
        match *lowering {
            Lowering::Copy => self.code.extend(inst.bytes().iter().copied()),
            Lowering::Split => {}
            Lowering::Address(register, value) => self.load_constant(register, value.0 as u32),
            Lowering::Add(register, value) => {
                for part in Modified::summing_to(value.0 as u32) {
                    self.halfwords(&add_modified(register, part));
                }
            }
            Lowering::Load(literal) => self.load(inst, literal),
            Lowering::LoadCopied(copied) => self.load_copied(inst, copied),
            Lowering::Jump(dest) => self.jump(dest),
            Lowering::Cond(cond, dest) => self.cond(cond, dest),
            Lowering::CompareZero(nonzero, register, dest) => {
                let hop = self.hop();
                self.jump(dest);
                let rel = Rel6::between(self.address(hop), self.here());
                self.patch(hop, rel.map(|rel| compare_zero(!nonzero, register, rel)));
            }
            Lowering::Call(target) => match self.near(target, 24).and_then(|at| Rel24::between(at, target)) {
                Some(rel) => self.halfwords(&bl_rel24(rel)),
                None => self.call_far(target, target.0 as u32 | 1),
            },
            Lowering::CallA32(target) => {
                match self.near(target, 24).and_then(|at| Rel24By4::between(at, target)) {
                    Some(rel) => self.halfwords(&blx_rel24(rel)),
                    None => self.call_far(target, target.0 as u32),
                }
            }
            Lowering::LastCall(callee, link) => self.last_call(callee, link),
            Lowering::LinkNext(link) => self.load_constant(LR, link.0 as u32 | 1),
            Lowering::JumpA32(target) => self.jump_a32(target),
            Lowering::Table { half, base, index, pc } => self.table(half, base, index, pc),
            Lowering::AddToPc(register, pc) => self.add_to_pc(register, pc),
        }
    }

    fn halfwords(&mut self, code: &[u16]) {
        self.code.extend(code.iter().flat_map(|halfword| halfword.to_le_bytes()));
    }

    /// The address that code at this offset has.
    fn address(&self, offset: usize) -> CodeAddr {
        self.to.add(offset as u64)
    }

    fn here(&self) -> CodeAddr {
        self.address(self.code.len())
    }

    /// Room for a 16-bit branch over what follows.
    fn hop(&mut self) -> usize {
        let hop = self.code.len();
        self.halfwords(&[UDF]);
        hop
    }

    /// Fills in a branch over everything since `hop`, taken where `cond` does not hold.
    fn over(&mut self, hop: usize, cond: Cond) {
        let rel = Rel8::between(self.address(hop), self.here());
        self.patch(hop, cond.inverted().zip(rel).map(|(cond, rel)| b_rel8(cond, rel)));
    }

    /// The branches here go over at most one instruction's code, which their fields hold by far.
    fn patch(&mut self, at: usize, code: Option<[u16; 1]>) {
        debug_assert!(code.is_some());
        if let Some([halfword]) = code {
            self.code[at..at + 2].copy_from_slice(&halfword.to_le_bytes());
        }
    }

    /// The address here, if the plan counts `target` as near.
    fn near(&self, target: CodeAddr, width: u32) -> Option<CodeAddr> {
        self.plan.near(target, width).contains(self.to).then(|| self.here())
    }

    /// The instruction about to be written has the offset of this literal in its field.
    fn literal(&mut self, words: &[u32], field: LiteralField) {
        let kind = FixupKind::Literal(self.literals.len(), field);
        self.fixups.push(Fixup { at: self.code.len(), kind });
        self.literals.extend(words.iter().copied());
    }

    /// `ldr.w register, literal`.
    fn load_constant(&mut self, register: u8, value: u32) {
        self.literal(&[value], LiteralField::Imm12);
        self.halfwords(&ldr_literal(register, 0));
    }

    fn load(&mut self, inst: &Inst, Literal { target, form, .. }: Literal) {
        let address = target.0 as u32;
        match form {
            LiteralForm::Core { register } => {
                self.load_constant(register, address);
                self.halfwords(&load_through(inst, register));
            }
            LiteralForm::Pc => {
                self.halfwords(&push(0b11));
                self.load_constant(0, address);
                self.halfwords(&load_word(0, 0));
                self.halfwords(&store_word_sp(0, 1));
                self.halfwords(&pop_pc(0b1));
            }
            LiteralForm::Stack | LiteralForm::Other => {
                self.halfwords(&push(0b1));
                self.load_constant(0, address);
                self.halfwords(&load_through(inst, 0));
                self.halfwords(&pop(0b1));
            }
        }
    }

    fn load_copied(&mut self, inst: &Inst, copied: Copied) {
        let (code, field) = load_literal(inst);
        self.literal(&copied.words[..copied.count], field);
        self.halfwords(&code);
    }

    fn jump(&mut self, dest: Dest) {
        match dest {
            Dest::Inside(number) => {
                self.fixups.push(Fixup { at: self.code.len(), kind: FixupKind::Jump(number) });
                self.halfwords(&b_rel24(Rel24::ZERO));
            }
            Dest::Outside(target) => match self.near(target, 24).and_then(|at| Rel24::between(at, target)) {
                Some(rel) => self.halfwords(&b_rel24(rel)),
                None => {
                    self.load_constant(PC, target.0 as u32 | 1);
                    self.indirect.push(target);
                }
            },
        }
    }

    fn cond(&mut self, cond: Cond, dest: Dest) {
        match dest {
            Dest::Inside(number) => {
                self.fixups.push(Fixup { at: self.code.len(), kind: FixupKind::Cond(cond, number) });
                self.halfwords(&b_rel20(cond, Rel20::ZERO));
            }
            Dest::Outside(target) => match self.near(target, 20).and_then(|at| Rel20::between(at, target)) {
                Some(rel) => self.halfwords(&b_rel20(cond, rel)),
                None => {
                    let hop = self.hop();
                    self.jump(dest);
                    self.over(hop, cond);
                }
            },
        }
    }

    /// LR is written by the call in any case. BLX reads it before.
    fn call_far(&mut self, target: CodeAddr, value: u32) {
        self.load_constant(LR, value);
        self.halfwords(&blx_register(LR));
        self.indirect.push(target);
    }

    /// LR becomes the original's, and the rest is a jump.
    fn last_call(&mut self, callee: Callee, link: CodeAddr) {
        self.load_constant(LR, link.0 as u32 | 1);
        match callee {
            Callee::T32(target) => self.jump(Dest::Outside(target)),
            Callee::A32(target) => self.jump_a32(target),
            Callee::Register(register) => self.halfwords(&bx_register(register)),
        }
    }

    fn jump_a32(&mut self, target: CodeAddr) {
        self.load_constant(PC, target.0 as u32);
        self.indirect.push(target);
    }

    /// Two registers are borrowed, and a slot above them takes the target, which is loaded into the PC with them.
    fn table(&mut self, half: bool, base: u8, index: u8, pc: CodeAddr) {
        let mut free = (0..8).filter(|&register| register != base && register != index);
        let (Some(address), Some(entry), Some(slot)) = (free.next(), free.next(), free.next()) else {
            return;
        };
        self.halfwords(&push(1 << address | 1 << entry | 1 << slot));
        let base = if base == PC {
            self.load_constant(address, pc.0 as u32);
            address
        } else {
            base
        };
        let load = if half { load_half_at } else { load_byte_at };
        self.halfwords(&load(entry, base, index));
        self.load_constant(address, pc.0 as u32 | 1);
        self.halfwords(&add_twice(address, entry));
        self.halfwords(&store_word_sp(address, 2));
        self.halfwords(&pop_pc(1 << address | 1 << entry));
    }

    /// `add pc, rm` ignores bit 0 of the sum and stays in T32 state.
    fn add_to_pc(&mut self, register: u8, pc: CodeAddr) {
        let (sum, slot) = match register {
            0 => (1, 2),
            1 => (0, 2),
            _ => (0, 1),
        };
        self.halfwords(&push(1 << sum | 1 << slot));
        self.load_constant(sum, pc.0 as u32);
        self.halfwords(&add_narrow(sum, register));
        self.halfwords(&orr_modified(sum, Modified::ONE));
        self.halfwords(&store_word_sp(sum, 1));
        self.halfwords(&pop_pc(1 << sum));
    }

    fn finish(mut self) -> Relocated {
        let code_len = self.code.len();
        self.map.end_code(code_len);
        if !self.literals.is_empty() && !self.here().0.is_multiple_of(LITERAL_ALIGN) {
            self.halfwords(&[UDF]);
        }
        let literals_at = self.code.len();
        for literal in &self.literals {
            self.code.extend(literal.to_le_bytes());
        }
        for fixup in core::mem::take(&mut self.fixups) {
            self.fill(fixup, literals_at);
        }
        Relocated {
            bytes: self.code,
            literals_at,
            map: self.map,
            clobbers: Registers::none(Isa::T32),
            landing_pads: self.indirect,
            resumes: self.plan.resume.is_some(),
        }
    }

    /// All places are less than [`MAX_EMITTED`] bytes apart, which every one of these fields holds.
    fn fill(&mut self, Fixup { at, kind }: Fixup, literals_at: usize) {
        let here = self.address(at);
        let code = match kind {
            FixupKind::Jump(number) => Rel24::between(here, self.address(self.starts[number])).map(b_rel24),
            FixupKind::Cond(cond, number) => {
                Rel20::between(here, self.address(self.starts[number])).map(|rel| b_rel20(cond, rel))
            }
            FixupKind::Literal(number, field) => {
                let aligned = CodeAddr(here.add(grapnel_arch::t32::PC_AHEAD).0 & !3);
                let offset = self.address(literals_at + 4 * number).displacement_from(aligned);
                let [a, b, c, d] = [0, 1, 2, 3].map(|byte| self.code[at + byte]);
                let (first, second) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
                field.bits(offset as u32).map(|bits| [first, second | bits])
            }
        };
        debug_assert!(code.is_some());
        for (place, byte) in self.code[at..]
            .iter_mut()
            .zip(code.into_iter().flatten().flat_map(|halfword| halfword.to_le_bytes()))
        {
            *place = byte;
        }
    }
}

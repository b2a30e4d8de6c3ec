//! The code of a plan for one destination.
//!
//! Layout: the instructions in order, the jump back, then the literals, at a multiple of 8. A branch to another instruction of the window,
//! or a use of a literal, leaves a fixup, which is filled in when every place is known. Which form an instruction
//! takes depends on its own place and on the plan's longest possible length, never on what follows, so nothing grows
//! after it was laid out.

use arrayvec::ArrayVec;
use grapnel_arch::{
    CodeAddr, Isa,
    x86_64::{
        Cond, Counter, Inst, Pointer, Rel8, Rel32, RipOperand, call_mem, call_rel32, jcc_rel8, jcc_rel32,
        jmp_mem, jmp_rel8, jmp_rel32, mov_imm32, mov_imm64, store_at_rsp,
    },
};

use super::{
    culprit,
    far::Far,
    plan::{Callee, Dest, LITERAL_ALIGN, Lowering, Plan},
};
use crate::{
    Error, PcMap, Registers, Relocated,
    plan::{LandingPads, MAX_EMITTED, keep_apart},
    window::MAX_INSTS,
};

/// The prefix BND, kept on branches that had it.
const BND: u8 = 0xf2;
/// What is between the code and the literals.
const INT3: u8 = 0xcc;
/// The prefix that makes a counter ECX.
const ADDRESS_SIZE: u8 = 0x67;

impl Plan {
    pub(crate) fn emit(&self, to: CodeAddr) -> Result<Relocated, Error> {
        keep_apart((self.from, self.window_len), (to, self.max_len()))?;
        let mut emitter = Emitter::new(self, to);
        for (inst, lowering) in &self.items {
            emitter.starts.push(emitter.code.len());
            emitter.map.push(inst.addr().displacement_from(self.from) as usize, emitter.code.len());
            emitter.instruction(inst, lowering)?;
        }
        if let Some(resume) = self.resume {
            emitter.map.push(resume.displacement_from(self.from) as usize, emitter.code.len());
            emitter.jump(false, Dest::Outside(resume));
        }
        Ok(emitter.finish())
    }
}

/// What a fixup's field counts to.
#[derive(Clone, Copy)]
enum Label {
    Inst(usize),
    Literal(usize),
}

/// A field to be filled in, at the end of its instruction.
#[derive(Clone, Copy)]
struct Fixup {
    field: usize,
    width: usize,
    label: Label,
}

pub(super) struct Emitter<'a> {
    pub(super) plan: &'a Plan,
    to: CodeAddr,
    /// Every place is less than 128 bytes from every other, whatever becomes of the instructions.
    short: bool,
    code: ArrayVec<u8, MAX_EMITTED>,
    starts: ArrayVec<usize, MAX_INSTS>,
    literals: ArrayVec<CodeAddr, { MAX_INSTS + 1 }>,
    fixups: ArrayVec<Fixup, { MAX_INSTS + 1 }>,
    map: PcMap,
    indirect: LandingPads,
    pub(super) clobbers: Registers,
}

impl<'a> Emitter<'a> {
    fn new(plan: &'a Plan, to: CodeAddr) -> Self {
        Self {
            plan,
            to,
            short: plan.max_len() <= 127,
            code: ArrayVec::new(),
            starts: ArrayVec::new(),
            literals: ArrayVec::new(),
            fixups: ArrayVec::new(),
            map: PcMap::default(),
            indirect: LandingPads::new(),
            clobbers: Registers::none(Isa::X86_64),
        }
    }

    fn instruction(&mut self, inst: &Inst, lowering: &Lowering) -> Result<(), Error> {
        let bnd = inst.prefixes().repne;
        match *lowering {
            Lowering::Copy => self.bytes(inst.bytes()),
            Lowering::Rip(operand, far) => self.rip(inst, operand, far)?,
            Lowering::Pointer(pointer, target) => self.pointer(inst, pointer, target),
            Lowering::Jump(dest) => self.jump(bnd, dest),
            Lowering::Cond(cond, dest) => self.cond(bnd, cond, dest),
            Lowering::Counter(kind, dest) => self.counter(inst.prefixes().address_size, kind, dest),
            Lowering::Call(target) => self.call(bnd, target),
            Lowering::LastCall(callee) => self.last_call(inst, callee)?,
            Lowering::PushNext => {
                // push [rip + rel32]
                self.bytes(&[0xff, 0x35, 0, 0, 0, 0]);
                self.literal(inst.next());
            }
            Lowering::Xbegin(dest) => self.xbegin(dest),
            Lowering::Syscall => {
                self.bytes(inst.bytes());
                // mov rcx, imm64
                self.bytes(&[0x48, 0xb9]);
                self.bytes(&inst.next().0.to_le_bytes());
            }
        }
        Ok(())
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.code.extend(bytes.iter().copied());
    }

    /// The address of the code `ahead` bytes further on.
    fn ahead(&self, ahead: usize) -> CodeAddr {
        self.to.add((self.code.len() + ahead) as u64)
    }

    /// The field of `width` bytes that was just written counts to `label`.
    fn fixup(&mut self, width: usize, label: Label) {
        self.fixups.push(Fixup { field: self.code.len() - width, width, label });
    }

    /// The 32-bit field that was just written counts to a literal.
    fn literal(&mut self, value: CodeAddr) {
        self.fixup(4, Label::Literal(self.literals.len()));
        self.literals.push(value);
    }

    fn prefix(&mut self, present: bool, prefix: u8) {
        if present {
            self.code.push(prefix);
        }
    }

    /// The displacement to `target` from the end of code of length `len` here, if the plan counts it as near.
    fn near(&self, len: usize, target: CodeAddr) -> Option<Rel32> {
        let counted = self.plan.near(target).contains(self.to);
        Rel32::between(self.ahead(len), target).filter(|_| counted)
    }

    fn rip(&mut self, inst: &Inst, operand: RipOperand, far: Far) -> Result<(), Error> {
        let next = self.ahead(inst.bytes().len());
        let near = match operand.wraps {
            true => Some(Rel32::between_wrapping(next, operand.target)),
            false => Rel32::between(next, operand.target),
        };
        match near {
            Some(rel) => {
                self.displaced(inst, operand.field, rel);
                Ok(())
            }
            None => self.far(inst, operand, far),
        }
    }

    /// The instruction with another displacement in its operand.
    fn displaced(&mut self, inst: &Inst, field: u8, rel: Rel32) {
        let field = self.code.len() + usize::from(field);
        self.bytes(inst.bytes());
        self.code[field..field + 4].copy_from_slice(&rel.bytes());
    }

    fn pointer(&mut self, inst: &Inst, pointer: Pointer, target: CodeAddr) {
        let near = self.near(inst.bytes().len(), target);
        if let (Some(rel), Some(operand)) = (near, inst.rip_operand()) {
            return self.displaced(inst, operand.field, rel);
        }
        match pointer {
            Pointer::Address { register } => self.bytes(&mov_imm64(register, target.0)),
            Pointer::LowAddress { register } => self.bytes(&mov_imm32(register, target.0 as u32)),
        }
    }

    fn jump(&mut self, bnd: bool, dest: Dest) {
        self.prefix(bnd, BND);
        match dest {
            Dest::Inside(number) if self.short => {
                self.bytes(&jmp_rel8(Rel8::ZERO));
                self.fixup(1, Label::Inst(number));
            }
            Dest::Inside(number) => {
                self.bytes(&jmp_rel32(Rel32::ZERO));
                self.fixup(4, Label::Inst(number));
            }
            Dest::Outside(target) => match self.near(5, target) {
                Some(rel) => self.bytes(&jmp_rel32(rel)),
                None => {
                    self.bytes(&jmp_mem(Rel32::ZERO));
                    self.literal(target);
                    self.indirect.push(target);
                }
            },
        }
    }

    fn cond(&mut self, bnd: bool, cond: Cond, dest: Dest) {
        match dest {
            Dest::Inside(number) => {
                self.prefix(bnd, BND);
                if self.short {
                    self.bytes(&jcc_rel8(cond, Rel8::ZERO));
                    self.fixup(1, Label::Inst(number));
                } else {
                    self.bytes(&jcc_rel32(cond, Rel32::ZERO));
                    self.fixup(4, Label::Inst(number));
                }
            }
            Dest::Outside(target) => match self.near(6 + usize::from(bnd), target) {
                Some(rel) => {
                    self.prefix(bnd, BND);
                    self.bytes(&jcc_rel32(cond, rel));
                }
                None => {
                    // Not taken: over a jump through a literal.
                    self.prefix(bnd, BND);
                    self.bytes(&jcc_rel8(cond.inverted(), Rel8::forward(6 + u8::from(bnd))));
                    self.prefix(bnd, BND);
                    self.bytes(&jmp_mem(Rel32::ZERO));
                    self.literal(target);
                    self.indirect.push(target);
                }
            },
        }
    }

    /// These branches have an 8-bit field only. Where it does not do, the branch goes to a jump of its own, and the other
    /// way goes around that; no flag is touched and the counter is decremented once.
    fn counter(&mut self, ecx: bool, kind: Counter, dest: Dest) {
        self.prefix(ecx, ADDRESS_SIZE);
        match dest {
            Dest::Inside(number) if self.short => {
                self.bytes(&[kind.opcode(), 0]);
                self.fixup(1, Label::Inst(number));
            }
            _ => {
                self.bytes(&[kind.opcode(), 2]);
                self.around(dest);
            }
        }
    }

    fn xbegin(&mut self, dest: Dest) {
        let near = match dest {
            Dest::Inside(_) => None,
            Dest::Outside(target) => self.near(6, target),
        };
        match (dest, near) {
            (_, Some(rel)) => {
                self.bytes(&[0xc7, 0xf8]);
                self.bytes(&rel.bytes());
            }
            (Dest::Inside(number), None) => {
                self.bytes(&[0xc7, 0xf8, 0, 0, 0, 0]);
                self.fixup(4, Label::Inst(number));
            }
            (Dest::Outside(_), None) => {
                self.bytes(&[0xc7, 0xf8, 2, 0, 0, 0]);
                self.around(dest);
            }
        }
    }

    /// `jmp over; jmp dest; over:`. The code before it branches to the second jump, 2 bytes ahead.
    fn around(&mut self, dest: Dest) {
        let over = self.code.len();
        self.bytes(&jmp_rel8(Rel8::ZERO));
        self.jump(false, dest);
        self.code[over + 1] = (self.code.len() - over - 2) as u8;
    }

    fn call(&mut self, bnd: bool, target: CodeAddr) {
        self.prefix(bnd, BND);
        match self.near(5, target) {
            Some(rel) => self.bytes(&call_rel32(rel)),
            None => {
                self.bytes(&call_mem(Rel32::ZERO));
                self.literal(target);
                self.indirect.push(target);
            }
        }
    }

    /// The call comes last, so that what it pushes at first is the address behind all this, as of any other call.
    fn last_call(&mut self, call: &Inst, callee: Callee) -> Result<(), Error> {
        let no_scratch = || Error::NoScratch { culprit: culprit(call) };
        let jump = || call.jump_to_callee().ok_or_else(no_scratch);
        let over = self.code.len();
        self.bytes(&jmp_rel8(Rel8::ZERO));
        let start = self.ahead(0);
        self.bytes(&store_at_rsp(call.next().0));
        match callee {
            Callee::At(target) => self.jump(false, Dest::Outside(target)),
            Callee::Register => self.bytes(jump()?.bytes()),
            Callee::Rip(operand, far) => self.rip(&jump()?, operand, far).map_err(|_| no_scratch())?,
        }
        self.code[over + 1] = (self.code.len() - over - 2) as u8;
        let back = Rel32::between_wrapping(self.ahead(5), start);
        self.bytes(&call_rel32(back));
        Ok(())
    }

    fn finish(mut self) -> Relocated {
        let code_len = self.code.len();
        self.map.end_code(code_len);
        if !self.literals.is_empty() {
            while !self.ahead(0).0.is_multiple_of(LITERAL_ALIGN) {
                self.code.push(INT3);
            }
        }
        let literals_at = self.code.len();
        for literal in &self.literals {
            self.code.extend(literal.0.to_le_bytes());
        }
        for Fixup { field, width, label } in self.fixups {
            let target = match label {
                Label::Inst(number) => self.starts[number],
                Label::Literal(number) => literals_at + number * 8,
            };
            let displacement = target as i32 - (field + width) as i32;
            self.code[field..field + width].copy_from_slice(&displacement.to_le_bytes()[..width]);
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

//! Every form that reads or writes the PC does come out of the generators, inside windows.

use arbitrary::Unstructured;
use fastrand::Rng;
use grapnel_fuzz::{case::Case, generate};
use grapnel_relocator::Isa;

/// A name, and the bits that tell the form: those of a mask, and their values. For T32 the first halfword is the upper.
type Form = (&'static str, u32, u32);

const AARCH64: &[Form] = &[
    ("adr", 0x9f00_0000, 0x1000_0000),
    ("adrp", 0x9f00_0000, 0x9000_0000),
    ("adr to xzr", 0x9f00_001f, 0x1000_001f),
    ("ldr w literal", 0xff00_0000, 0x1800_0000),
    ("ldr x literal", 0xff00_0000, 0x5800_0000),
    ("ldr xzr literal", 0xff00_001f, 0x5800_001f),
    ("ldrsw literal", 0xff00_0000, 0x9800_0000),
    ("prfm literal", 0xff00_0000, 0xd800_0000),
    ("ldr s literal", 0xff00_0000, 0x1c00_0000),
    ("ldr d literal", 0xff00_0000, 0x5c00_0000),
    ("ldr q literal", 0xff00_0000, 0x9c00_0000),
    ("b", 0xfc00_0000, 0x1400_0000),
    ("bl", 0xfc00_0000, 0x9400_0000),
    ("b.cond", 0xff00_0010, 0x5400_0000),
    ("b.al", 0xff00_001f, 0x5400_000e),
    ("bc.cond", 0xff00_0010, 0x5400_0010),
    ("cbz w", 0xff00_0000, 0x3400_0000),
    ("cbnz x", 0xff00_0000, 0xb500_0000),
    ("cbz of x16", 0x7f00_001f, 0x3400_0010),
    ("tbz", 0xff00_0000, 0x3600_0000),
    ("tbnz of a high bit", 0xff00_0000, 0xb700_0000),
    ("tbz of x17", 0x7f00_001f, 0x3600_0011),
    ("cb of registers", 0x7f00_c000, 0x7400_0000),
    ("cb of bytes", 0xff00_c000, 0x7400_8000),
    ("cb of an immediate", 0x7f00_4000, 0x7500_0000),
    ("retaasppc", 0xffe0_001f, 0x5500_001f),
    ("autiasppc", 0xffe0_001f, 0xf380_001f),
    ("paciasppc", 0xffff_ffff, 0xdac1_a3fe),
    ("pacm", 0xffff_ffff, 0xd503_24ff),
    ("br", 0xffff_fc1f, 0xd61f_0000),
    ("br x16", 0xffff_ffff, 0xd61f_0200),
    ("blr", 0xffff_fc1f, 0xd63f_0000),
    ("ret", 0xffff_ffff, 0xd65f_03c0),
    ("retaa", 0xffff_ffff, 0xd65f_0bff),
    ("bti", 0xffff_ff3f, 0xd503_241f),
    ("paciasp", 0xffff_ffff, 0xd503_233f),
    ("pacia1716", 0xffff_ffff, 0xd503_211f),
    ("ldxr", 0xbfff_fc00, 0x885f_7c00),
    ("stxr", 0xbfe0_fc00, 0x8800_7c00),
    ("eret", 0xffff_ffff, 0xd69f_03e0),
    ("svc", 0xffe0_001f, 0xd400_0001),
];

const A32: &[Form] = &[
    ("b", 0x0f00_0000, 0x0a00_0000),
    ("b under a condition", 0xff00_0000, 0x1a00_0000),
    ("bl", 0xff00_0000, 0xeb00_0000),
    ("bl under a condition", 0xff00_0000, 0x3b00_0000),
    ("blx", 0xfe00_0000, 0xfa00_0000),
    ("bx pc", 0x0fff_ffff, 0x012f_ff1f),
    ("blx register", 0x0fff_fff0, 0x012f_ff30),
    ("bxj", 0x0fff_fff0, 0x012f_ff20),
    ("adr", 0x0fff_0000, 0x028f_0000),
    ("adr downward", 0x0fff_0000, 0x024f_0000),
    ("mov from pc", 0x0fff_0fff, 0x01a0_000f),
    ("mov to pc", 0x0fff_fff0, 0x01a0_f000),
    ("add to pc", 0x0ff0_f010, 0x0080_f000),
    ("pc as first operand", 0x0fff_0010, 0x008f_0000),
    ("pc as second operand", 0x0ff0_0fff, 0x0080_000f),
    ("pc shifted", 0x0e00_00ff, 0x0000_008f),
    ("pc rotated with carry", 0x0e00_0fff, 0x0000_006f),
    ("pc as both operands", 0x0fff_0fff, 0x008f_000f),
    ("pc compared", 0x0fff_0000, 0x035f_0000),
    ("pc tested, shifted", 0x0ff0_001f, 0x0110_000f),
    ("flags set of pc", 0x0fff_0010, 0x005f_0000),
    ("pc shifted by a register", 0x0e00_009f, 0x0000_001f),
    ("ldr literal", 0x0f7f_0000, 0x051f_0000),
    ("ldr literal to pc", 0x0f7f_f000, 0x051f_f000),
    ("ldr pc, [pc, rm]", 0x0f7f_f010, 0x071f_f000),
    ("ldrb literal", 0x0f7f_0000, 0x055f_0000),
    ("str to literal", 0x0f7f_0000, 0x050f_0000),
    ("ldrh literal", 0x0f7f_00f0, 0x015f_00b0),
    ("ldrsb literal", 0x0f7f_00f0, 0x015f_00d0),
    ("ldrsh literal", 0x0f7f_00f0, 0x015f_00f0),
    ("ldrd literal", 0x0f7f_00f0, 0x014f_00d0),
    ("strd to literal", 0x0f7f_00f0, 0x014f_00f0),
    ("strh to literal", 0x0f7f_00f0, 0x014f_00b0),
    ("ldr with index", 0x0f7f_0010, 0x071f_0000),
    ("ldr with index downward", 0x0fff_0010, 0x071f_0000),
    ("ldr with shifted index", 0x0f7f_0070, 0x071f_0020),
    ("pc as index", 0x0e00_001f, 0x0600_000f),
    ("ldrh with index", 0x0f7f_0ff0, 0x011f_00b0),
    ("ldrd with index", 0x0f7f_0ff0, 0x010f_00d0),
    ("vldr s literal", 0x0f3f_0f00, 0x0d1f_0a00),
    ("vldr d literal", 0x0f3f_0f00, 0x0d1f_0b00),
    ("vstr to literal", 0x0f3f_0f00, 0x0d0f_0b00),
    ("ldc literal", 0x0f3f_0f00, 0x0d1f_0e00),
    ("pld literal", 0xff7f_f000, 0xf55f_f000),
    ("pldw literal", 0xff7f_f000, 0xf51f_f000),
    ("pli literal", 0xff7f_f000, 0xf45f_f000),
    ("pld with index", 0xff7f_f010, 0xf75f_f000),
    ("str of pc", 0x0f50_f000, 0x0500_f000),
    ("ldr to pc", 0x0f50_f000, 0x0510_f000),
    ("ldm of pc", 0x0e10_8000, 0x0810_8000),
    ("stm of pc", 0x0e10_8000, 0x0800_8000),
    ("ldm from pc", 0x0e1f_0000, 0x081f_0000),
    ("stm to pc", 0x0e1f_0000, 0x080f_0000),
    ("pop of pc", 0x0fff_8000, 0x08bd_8000),
    ("subs pc, lr", 0x0fff_f000, 0x025e_f000),
    ("rfe", 0xfe50_0000, 0xf810_0000),
];

const T32: &[Form] = &[
    ("b.n under a condition", 0xf000_0000, 0xd000_0000),
    ("b.n", 0xf800_0000, 0xe000_0000),
    ("b.w under a condition", 0xf800_d000, 0xf000_8000),
    ("b.w", 0xf800_d000, 0xf000_9000),
    ("bl", 0xf800_d000, 0xf000_d000),
    ("blx", 0xf800_d001, 0xf000_c000),
    ("bx pc", 0xffff_0000, 0x4778_0000),
    ("bx", 0xff87_0000, 0x4700_0000),
    ("blx register", 0xff87_0000, 0x4780_0000),
    ("mov from pc", 0xff78_0000, 0x4678_0000),
    ("mov to pc", 0xff87_0000, 0x4687_0000),
    ("add of pc", 0xff78_0000, 0x4478_0000),
    ("add to pc", 0xff87_0000, 0x4487_0000),
    ("cmp with pc", 0xff78_0000, 0x4578_0000),
    ("adr.n", 0xf800_0000, 0xa000_0000),
    ("adr.w", 0xfbff_8000, 0xf20f_0000),
    ("adr.w downward", 0xfbff_8000, 0xf2af_0000),
    ("ldr.n literal", 0xf800_0000, 0x4800_0000),
    ("ldr.w literal", 0xff7f_0000, 0xf85f_0000),
    ("ldr.w literal to pc", 0xff7f_f000, 0xf85f_f000),
    ("ldrb literal", 0xff7f_0000, 0xf81f_0000),
    ("ldrh literal", 0xff7f_0000, 0xf83f_0000),
    ("ldrsb literal", 0xff7f_0000, 0xf91f_0000),
    ("ldrsh literal", 0xff7f_0000, 0xf93f_0000),
    ("ldrd literal", 0xff7f_0000, 0xe95f_0000),
    ("vldr s literal", 0xff3f_0f00, 0xed1f_0a00),
    ("vldr d literal", 0xff3f_0f00, 0xed1f_0b00),
    ("ldc literal", 0xff3f_0f00, 0xed1f_0e00),
    ("pld literal", 0xff7f_f000, 0xf81f_f000),
    ("pli literal", 0xff7f_f000, 0xf91f_f000),
    ("cbz", 0xfd00_0000, 0xb100_0000),
    ("cbnz", 0xfd00_0000, 0xb900_0000),
    ("tbb", 0xfff0_fff0, 0xe8d0_f000),
    ("tbb from pc", 0xffff_fff0, 0xe8df_f000),
    ("tbh from pc", 0xffff_fff0, 0xe8df_f010),
    ("pop of pc", 0xff00_0000, 0xbd00_0000),
    ("pop.w of pc", 0xffff_8000, 0xe8bd_8000),
    ("ldr to pc", 0xfff0_f000, 0xf8d0_f000),
    ("wide data processing of pc", 0xfe0f_8000, 0xea0f_0000),
    ("subs pc, lr", 0xffff_ff00, 0xf3de_8f00),
    ("it", 0xff0c_0000, 0xbf08_0000),
    ("it of four", 0xff01_0000, 0xbf01_0000),
    ("it of al", 0xfff0_0000, 0xbfe0_0000),
];

const CASES: u64 = 20_000;

#[test]
fn of_aarch64() {
    complete(Isa::Aarch64, AARCH64, |_, _| {});
}

#[test]
fn of_a32() {
    complete(Isa::A32, A32, |_, _| {});
}

#[test]
fn of_t32() {
    let [mut cut, mut alu, mut literal, mut branch, mut aligned, mut odd] = [0; 6];
    complete(Isa::T32, T32, |case, words| {
        // How many members are still to come.
        let mut left: u32 = 0;
        for &(word, _) in words {
            let halfword = word >> 16;
            if left == 0 {
                if halfword >> 8 == 0xbf && halfword & 0xf != 0 {
                    left = 4 - halfword.trailing_zeros();
                }
                continue;
            }
            left -= 1;
            alu += u64::from(halfword < 0x4400);
            literal += u64::from(halfword >> 11 == 0b01001);
            branch += u64::from(left == 0 && halfword & 0xff80 == 0x4700);
        }
        cut += u64::from(left > 0);
        *if case.from.0.is_multiple_of(4) { &mut aligned } else { &mut odd } += 1;
    });
    for count in [cut, alu, literal, branch, aligned, odd] {
        assert!(count > 20, "{:?}", [cut, alu, literal, branch, aligned, odd]);
    }
}

/// Branches of AArch64 lead everywhere that matters.
#[test]
fn of_targets() {
    let [mut back, mut on, mut behind, mut far, mut ends] = [0; 5];
    complete(Isa::Aarch64, &[], |_, words| {
        for &(word, at) in words {
            if word >> 26 != 5 {
                continue;
            }
            let displacement = i64::from((word << 6).cast_signed() >> 6);
            let (target, end) = ((at as i64 / 4) + displacement, words.len() as i64);
            match target {
                _ if displacement < 0 && target >= 0 => back += 1,
                _ if target >= 0 && target < end => on += 1,
                _ if target == end => behind += 1,
                _ if displacement.abs() > 0x1ff_fff0 => ends += 1,
                _ => far += 1,
            }
        }
    });
    for count in [back, on, behind, far, ends] {
        assert!(count > 20, "{:?}", [back, on, behind, far, ends]);
    }
}

/// Runs the generator, and looks at the instructions of each window.
#[track_caller]
fn complete(isa: Isa, forms: &[Form], mut look: impl FnMut(&Case, &[(u32, usize)])) {
    let mut counts = vec![0u64; forms.len()];
    let mut rng = Rng::with_seed(3);
    for _ in 0..CASES {
        let mut entropy = [0; generate::ENTROPY];
        rng.fill(&mut entropy);
        let case = generate::case(isa, &mut Unstructured::new(&entropy)).unwrap();
        let words = window(isa, &case);
        for &(word, _) in &words {
            for (count, (_, mask, value)) in counts.iter_mut().zip(forms) {
                *count += u64::from(word & mask == *value);
            }
        }
        look(&case, &words);
    }
    let never: Vec<_> =
        forms.iter().zip(&counts).filter(|&(_, &count)| count < 2).map(|(form, _)| form.0).collect();
    assert!(never.is_empty(), "{isa} lacks {never:?}");
}

/// The instructions that a patch of the length asked for overwrites.
fn window(isa: Isa, case: &Case) -> Vec<(u32, usize)> {
    let mut words = Vec::new();
    let mut at = 0;
    while at < case.min_len
        && let Some(bytes) = case.source.get(at..at + 4)
    {
        let halves = [0, 2].map(|half| u32::from(u16::from_le_bytes([bytes[half], bytes[half + 1]])));
        let (word, len) = match isa {
            Isa::T32 if halves[0] >> 11 < 0b11101 => (halves[0] << 16, 2),
            Isa::T32 => (halves[0] << 16 | halves[1], 4),
            _ => (halves[1] << 16 | halves[0], 4),
        };
        words.push((word, at));
        at += len;
    }
    words
}

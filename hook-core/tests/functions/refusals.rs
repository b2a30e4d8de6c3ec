//! What can't be hooked, and that the answer says why and what to do.

use grapnel_hook::{CodeAddr, Error, HookPlan, Options, Proof};

use crate::samples;

fn refusal(name: &str, options: Options) -> Error {
    let sample = samples::all().into_iter().find(|s| s.name == name).unwrap();
    let before = crate::code::bytes(sample.at, 48);
    let error = HookPlan::new(CodeAddr(sample.at as u64), options).unwrap_err();
    assert_eq!(crate::code::bytes(sample.at, 48), before);
    assert!(!error.remedy().is_empty());
    println!("  {name}: {error}\n    {}", error.remedy());
    error
}

pub(crate) fn run() {
    println!("refusals:");
    let plain = Options::default();
    assert!(matches!(refusal("undefined", plain), Error::Relocation { .. }));
    #[cfg(target_arch = "x86_64")]
    of_x86_64(plain);

    let error = HookPlan::new(CodeAddr(turns_back as *const () as u64), plain).unwrap_err();
    assert!(matches!(error, Error::InboundBranch { .. }), "{error}");

    let data = 7u64;
    for address in [0, 8, u64::MAX - 1, &raw const data as u64] {
        let error = HookPlan::new(CodeAddr(address), plain).unwrap_err();
        assert_eq!(error, Error::NotExecutable { target: CodeAddr(address) });
    }

    // Many at a time are planned as each by itself, whatever becomes of the others.
    let of_sample = |sample: samples::Sample| (CodeAddr(sample.at as u64), plain);
    let asked: Vec<(CodeAddr, Options)> =
        samples::all().into_iter().map(of_sample).chain([(CodeAddr(8), plain)]).collect();
    let plans = HookPlan::all(asked.iter().copied());
    assert_eq!(plans.len(), asked.len());
    assert!(plans.iter().any(Result::is_ok) && plans.iter().any(Result::is_err));
    for (plan, (target, options)) in plans.into_iter().zip(asked) {
        assert_eq!(plan, HookPlan::new(target, options));
    }
    assert!(HookPlan::all([]).is_empty());

    // A proof is to be had for a function whose whole code is seen.
    let frame = samples::all().into_iter().find(|s| s.name == "frame").unwrap();
    // On 32-bit Arm no unwind table says how long a function is.
    let size = cfg!(target_arch = "arm").then_some(12);
    let plan =
        HookPlan::new(CodeAddr(frame.at as u64), Options { require_proof: true, size, ..plain }).unwrap();
    assert_eq!(*plan.proof(), Proof::Proven);
}

#[cfg(target_arch = "x86_64")]
fn of_x86_64(plain: Options) {
    let error = refusal("breakpoint", plain);
    assert_eq!(error.bytes().unwrap().as_slice(), [0xcc]);
    assert!(error.instruction().unwrap().contains("int3"));
    assert!(matches!(refusal("inbound", plain), Error::InboundBranch { .. }));
    let error = refusal("entered_by_another", plain);
    assert!(
        matches!(error, Error::InboundBranch { .. }) && error.instruction().unwrap().contains("jmp"),
        "{error}"
    );
    // What looks like padding is where another function begins.
    let error = refusal("before_nops", plain);
    assert!(
        matches!(error, Error::Relocation { source: grapnel_relocator::Error::EndsEarly { .. }, .. }),
        "{error}"
    );
    let error = HookPlan::new(CodeAddr(ends_at_an_entry as *const () as u64), plain).unwrap_err();
    assert!(
        matches!(error, Error::Relocation { source: grapnel_relocator::Error::EndsEarly { .. }, .. }),
        "{error}"
    );
    // The unwind table may say more than the caller wants to believe.
    let error = refusal("just_ret", Options { use_padding: false, ..plain });
    assert!(matches!(error, Error::Relocation { source: grapnel_relocator::Error::EndsEarly { .. }, .. }));
}

#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .text.ends_at_an_entry, \"ax\", @progbits",
    ".p2align 4",
    // Nothing says how long it is. Behind it begins another function.
    ".globl ends_at_an_entry",
    "ends_at_an_entry:",
    "ret",
    ".cfi_startproc",
    "nop; nop; nop; nop; mov eax, 42; ret",
    ".cfi_endproc",
    ".popsection",
);

#[cfg(target_arch = "x86_64")]
unsafe extern "C" {
    fn ends_at_an_entry();
}

#[cfg(target_arch = "x86_64")]
macro_rules! turns_back {
    () => {
        "turns_back: nop; 7: inc edi; cmp edi, 10; jl 8f; mov eax, edi; ret; .zero 600, 0xcc; 8: jmp 7b"
    };
}

// A patch is as long as an instruction: what the code reads there is what must stay.
#[cfg(target_arch = "aarch64")]
macro_rules! turns_back {
    () => {
        "turns_back: 7: mov w0, #0; add w0, w0, #1; cmp w0, #10; b.lt 8f; ret; .zero 600; 8: ldr w1, 7b; ret"
    };
}

#[cfg(target_arch = "arm")]
macro_rules! turns_back {
    () => {
        ".thumb; .thumb_func; turns_back: movs r0, #0; 7: adds r0, #1; cmp r0, #10; blt 8f; bx lr; .zero 600; 8: b 7b; .arm"
    };
}

std::arch::global_asm!(
    ".pushsection .text.turns_back, \"ax\", %progbits",
    ".p2align 4",
    // Nothing says how long it is.
    ".globl turns_back",
    ".type turns_back, %function",
    turns_back!(),
    ".popsection",
);

unsafe extern "C" {
    fn turns_back();
}

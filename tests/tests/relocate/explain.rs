//! What `--explain` writes, held against `explained/ISA.txt`.

use std::path::{Path, PathBuf};
use std::{env, fs};

use grapnel_tests::run::finish;
use serde_json::json;

use crate::command;

/// The file is written anew with `GRAPNEL_BLESS=1`.
#[track_caller]
fn golden(name: &str, actual: &str) {
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/relocate/explained").join(name);
    if env::var_os("GRAPNEL_BLESS").is_some() {
        fs::write(&path, actual).expect("the file can be written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert!(actual == expected, "{}: set GRAPNEL_BLESS=1 to accept\n{actual}", path.display());
}

#[test]
fn explained_x86_64() {
    explained(
        "x86_64",
        &[
            // push rbp; mov rbp, rsp; mov rax, [rip + 0x1000]; ...
            (0x7f00_0000_1000, 0x1000_0000, "554889e5488b0500100000c3", 5),
            // jrcxz; lock inc dword ptr [rip + 0x1000]
            (0x7f00_0000_1000, 0x7f00_0010_0000, "e33ef0ff0500100000c3", 5),
            // AVX-512 with a displacement and an immediate: wider than a side.
            (0x7f00_0000_1000, 0x7f00_0010_0000, "62f3f5482505001000000190", 5),
            (0x7f00_0000_1000, 0x1000_0000, "f0ff0500100000c3909090", 5),
            (0x7f00_0000_1000, 0x1000_0000, "55ff2d00010000", 5),
            (0x7f00_0000_1000, 0x1000_0000, "5548", 5),
            (0x7f00_0000_1000, 0x1000_0000, "5548", 99),
        ],
    );
}

#[test]
fn explained_aarch64() {
    explained(
        "aarch64",
        &[
            // stp x29, x30, [sp, #-16]!; mov x29, sp; bl; ret
            (0x40_1000, 0x50_0000, "fd7bbfa9fd03009140000094c0035fd6", 8),
            // adrp x0; ldr x1, [x0, #8]; cbz x1; ret
            (0x40_1000, 0x7f00_0000_0000, "00000090010440f9810000b4c0035fd6", 12),
            // ldr x0, literal in the window
            (0x40_1000, 0x50_0000, "40000058c0035fd61f2003d51f2003d5", 12),
            // svc; undefined
            (0x40_1000, 0x50_0000, "010000d4000000001f2003d5", 8),
            (0x40_1000, 0x50_0000, "fd7bbfa9fd03", 8),
        ],
    );
}

#[test]
fn explained_a32() {
    explained(
        "a32",
        &[
            // push {r11, lr}; ldr r0, [pc, #256]; bleq; bx lr
            (0x40_1000, 0x50_0000, "00482de900019fe54000000b1eff2fe1", 12),
            // add r0, pc, r1, lsl #2; b
            (0x40_1000, 0x7000_0000, "01018fe0feffffea0000a0e10000a0e1", 8),
            // add pc, pc, r0, lsl #2
            (0x40_1000, 0x50_0000, "00f18fe00000a0e10000a0e10000a0e1", 4),
            (0x40_1000, 0x50_0000, "00482de90db0", 8),
        ],
    );
}

#[test]
fn explained_t32() {
    explained(
        "t32",
        &[
            // push {r4, lr}; ldr r0, [pc, #8]; bl; pop {r4, pc}
            (0x40_1000, 0x50_0000, "10b5024800f040f810bd00bf00bf00bf", 8),
            // cmp r0, #0; it eq; moveq r0, #1; bx lr
            (0x40_1000, 0x50_0000, "002808bf0120704700bf00bf", 4),
            // cbz r0; add r0, pc; b
            (0x40_1000, 0x7000_0000, "20b1784400bffee700bf00bf", 4),
            // tbb [pc, r0]
            (0x40_1000, 0x50_0000, "dfe800f00203040500bf00bf", 4),
            (0x40_1000, 0x50_0000, "10b502", 8),
        ],
    );
}

#[track_caller]
fn explained(isa: &str, requests: &[(u64, u64, &str, u64)]) {
    let mut input = String::new();
    for (from, to, bytes, min_len) in requests {
        let line = json!({"isa": isa, "from": from, "to": to, "bytes": bytes, "min_len": min_len});
        input += &format!("{line}\n");
    }
    input +=
        "{\"isa\":\"\\u001b[2J\"}\n{\"isa\":\"\\u001b[2J\",\"from\":0,\"to\":0,\"bytes\":\"\",\"min_len\":1}";
    let outcome = finish(&mut command(&["--explain"]), input.as_bytes());
    assert_eq!((outcome.err().as_str(), outcome.status.code()), ("", Some(1)));
    let text = outcome.out();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(!text.contains('\u{1b}'));
    golden(&format!("{isa}.txt"), &text);
}

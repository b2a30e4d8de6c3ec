//! Functions of x86-64.

use super::Sample;

samples! {
    "0xcc",
    frame: Some(|x| x + 1), "push rbp; mov rbp, rsp; sub rsp, 32; mov [rbp - 8], rdi; mov rax, [rbp - 8]; inc rax; leave; ret";
    landing_pad: Some(|x| x + 2), "endbr64; push rbx; mov rbx, rdi; lea rax, [rbx + 2]; pop rbx; ret";
    landing_pad_short: Some(|x| x), "endbr64; mov rax, rdi; ret";
    red_zone: Some(|x| x * 2), "mov [rsp - 8], rdi; mov rax, [rsp - 8]; add rax, [rsp - 8]; ret";
    literal: Some(|x| x + 40), "mov rax, [rip + 9f]; add rax, rdi; ret; .p2align 3; 9: .quad 40";
    rip_compare: Some(|x| x + 1), "cmp dword ptr [rip + 9f], 77; jne 8f; lea rax, [rdi + 1]; ret; 8: xor eax, eax; ret; .p2align 3; 9: .long 77";
    rip_lea: Some(|x| x + 5), "lea rax, [rip + 9f]; mov rax, [rax]; add rax, rdi; ret; .p2align 3; 9: .quad 5";
    early_branch: Some(|x| if x == 0 { 9 } else { x }), "test rdi, rdi; je 8f; mov rax, rdi; ret; 8: mov eax, 9; ret";
    counter_branch: Some(|x| if x == 0 { 3 } else { x }), "mov rcx, rdi; jrcxz 8f; mov rax, rcx; ret; 8: mov eax, 3; ret";
    inner_loop: Some(|x| x + 3), "mov cl, 3; 7: inc rdi; dec cl; jnz 7b; mov rax, rdi; nop; nop; ret";
    call: Some(|x| x + 11), "call 8f; add rax, rdi; ret; 8: mov eax, 11; ret";
    get_pc: Some(|x| x), "call 8f; 8: pop rax; lea rcx, [rip + 8b]; sub rax, rcx; add rax, rdi; ret";
    jump_first: Some(|x| x + 12), "jmp 8f; ud2; 8: lea rax, [rdi + 12]; ret";
    far_jump_first: Some(|x| x + 13), ".byte 0xe9; .long 8f - . - 4; ud2; 8: lea rax, [rdi + 13]; ret";
    tail_through_memory: Some(|x| x + 1), "jmp [rip + 9f]; .pushsection .data.rel.ro, \"aw\", @progbits; .p2align 3; 9: .quad sample_frame; .popsection";
    system_call: Some(|_| u64::from(std::process::id())), "mov eax, 39; syscall; ret";
    wide_immediate: Some(|x| x ^ 0x1234_5678_9abc_def0), "movabs rax, 0x123456789abcdef0; xor rax, rdi; ret";
    compact: Some(|x| x + 1), "push rdi; pop rax; inc rax; ret";
    flags_kept: Some(|x| u64::from(x > 10)), "cmp rdi, 10; seta al; movzx eax, al; ret";
    just_ret: None, "ret";
    no_room: Some(|_| 0), "xor eax, eax; ret; .cfi_endproc; .cfi_startproc; 8: nop; mov eax, 6; push rbx; pop rbx; mov ecx, 1; ret";
    inbound: None, "nop; 7: inc rdi; nop; dec rdi; mov rax, rdi; cmp rax, 100000; jb 7b; ret";
    entered_by_another: None, "push rdi; 7: pop rax; inc rax; nop; ret; .cfi_endproc; .cfi_startproc; mov eax, 5; push rax; jmp 7b";
    before_nops: None, "ret; .cfi_endproc; .cfi_startproc; nop; nop; nop; nop; mov eax, 42; ret; .zero 128, 0x90";
    breakpoint: None, "int3; mov rax, rdi; ret; nop; nop; nop";
    undefined: None, ".byte 0x06, 0x06, 0x06, 0x06, 0x06, 0x06";
}

//! Functions of x86-64.

use super::Sample;

// A sample that has nothing to be probed has its label for it at its end.
samples! {
    frame: "push rbp; .cfi_def_cfa_offset 16; .cfi_offset rbp, -16; mov rbp, rsp; .cfi_def_cfa_register rbp
        sub rsp, 32; mov [rbp - 8], rdi; seen_frame_probed: mov rax, [rbp - 8]; add rax, 1; nop; leave
        .cfi_def_cfa rsp, 8; ret";
    landing_pad: "endbr64; push rbx; .cfi_def_cfa_offset 16; .cfi_offset rbx, -16; mov rbx, rdi; nop
        seen_landing_pad_probed: lea rax, [rbx + 1]; lea rcx, [rax + rbx]; pop rbx; .cfi_def_cfa_offset 8; ret";
    red_zone: "mov [rsp - 8], rdi; seen_red_zone_probed: mov rax, [rsp - 8]; add rax, 1; ret";
    rip_load: "mov rax, [rip + 9f]; add rax, rdi; seen_rip_load_probed: ret; .p2align 3; 9: .quad 1";
    early_branch: "test rdi, rdi; jne 8f; mov eax, 1; ret; 8: lea rax, [rdi + 1]; ret; seen_early_branch_probed:";
    call: "sub rsp, 8; .cfi_def_cfa_offset 16; call 8f; seen_call_probed: lea rax, [rdi + rax]; add rsp, 8
        .cfi_def_cfa_offset 8; ret; .cfi_endproc; .cfi_startproc; 8: mov eax, 1; ret";
    tail: "jmp [rip + 9f]; seen_tail_probed: .pushsection .data.rel.ro, \"aw\", @progbits; .p2align 3
        9: .quad seen_tail_to; .popsection; .cfi_endproc; .cfi_startproc; seen_tail_to: lea rax, [rdi + 1]; ret";
}

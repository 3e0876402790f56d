# The functions that compiled code calls for block copies, which no C library provides here. They run in ring 3, where
# string instructions are native and fast. Assembly, because a compiler may turn a loop in them into a call of itself.

.section .text.memory, "ax"
.globl memcpy
memcpy:
    mov rax, rdi
    mov rcx, rdx
    rep movsb
    ret

.globl memmove
memmove:
    mov rax, rdi
    mov rcx, rdx
    mov r8, rdi
    sub r8, rsi
    cmp r8, rdx
    jb 2f                         # the target begins inside the source: copy from the end
    rep movsb
    ret
2:  test rcx, rcx
    jz 4f
3:  mov r8b, [rsi + rcx - 1]
    mov [rdi + rcx - 1], r8b
    dec rcx
    jnz 3b
4:  ret

.globl memset
memset:
    mov r8, rdi
    mov eax, esi
    mov rcx, rdx
    rep stosb
    mov rax, r8
    ret

.globl memcmp
.globl bcmp
memcmp:
bcmp:
    xor ecx, ecx
2:  cmp rcx, rdx
    je 3f
    movzx eax, byte ptr [rdi + rcx]
    movzx r8d, byte ptr [rsi + rcx]
    inc rcx
    sub eax, r8d
    je 2b
    ret
3:  xor eax, eax
    ret

.globl strlen
strlen:
    xor eax, eax
2:  cmp byte ptr [rdi + rax], 0
    je 3f
    inc rax
    jmp 2b
3:  ret

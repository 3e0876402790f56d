# Ring 0: load descriptor tables, then leave for ring 3 for good. Kept to plain integer instructions, because some hosts
# emulate this ring (docs/decisions/0002-guests-in-ring-3.md).
#
# In: RDI = address of hvm_start_info, RSP = end of the stack. Both reach `ring3_main`.

.set RING0_CODE, 0x08
.set RING3_DATA, 0x18 | 3
.set RING3_CODE, 0x20 | 3
.set TASK_STATE, 0x28
.set IO_PORTS, 0x1000             # ports that ring 3 may use: 0 to 0xfff
.set EXCEPTIONS, 32
.set INTERRUPT_VECTOR, EXCEPTIONS # the only interrupt: the vGPU's, if it is sent to this CPU
.set LOCAL_APIC_EOI, 0xfee000b0
.set EXIT_PORT, 0xf4
.set STATUS_DOUBLE_FAULT, 0xfd

.section .text.start, "ax"
.globl _start
_start:
    mov r8, rsp
    lea rsp, [rip + ring0_stack_end]
    lea rax, [rip + task_state]
    mov [rip + task_descriptor + 2], ax
    shr rax, 16
    mov [rip + task_descriptor + 4], al
    shr rax, 8
    mov [rip + task_descriptor + 7], al
    lgdt [rip + gdt_pointer]
    mov ax, TASK_STATE
    ltr ax

    lea rbx, [rip + interrupt_table]
    lea rax, [rip + vectors]
    mov ecx, EXCEPTIONS
2:  mov [rbx], ax
    mov word ptr [rbx + 2], RING0_CODE
    mov word ptr [rbx + 4], 0x8e00    # present, ring 0 only, interrupt gate
    mov rdx, rax
    shr rdx, 16
    mov [rbx + 6], dx
    add rbx, 16
    add rax, 16
    dec ecx
    jnz 2b
    lea rax, [rip + interrupt]
    mov [rbx], ax
    mov word ptr [rbx + 2], RING0_CODE
    mov word ptr [rbx + 4], 0x8e00
    shr rax, 16
    mov [rbx + 6], ax
    lidt [rip + interrupt_table_pointer]

    lea rax, [rip + ring3_main]
    sub r8, 8                     # as if called
    push RING3_DATA
    push r8
    push 0x202                    # RFLAGS: interrupts on; none comes before the local APIC is enabled
    push RING3_CODE
    push rax
    iretq

.balign 16
interrupt:
    inc dword ptr [rip + interrupt_count]
    push rax
    mov eax, LOCAL_APIC_EOI
    mov dword ptr [rax], 0
    pop rax
    iretq

# An exception: `ring3_exception(vector, error code, address, CR2)` reports it on a stack of its own. One more is fatal.
.balign 16
vectors:
.set vector, 0
.rept EXCEPTIONS
    .balign 16
    .if (vector == 8) || ((vector >= 10) && (vector <= 14)) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    push 0
    .endif
    push vector
    jmp exception
    .set vector, vector + 1
.endr

.balign 16
exception:
    cmp dword ptr [rip + has_faulted], 0
    jne 3f
    mov dword ptr [rip + has_faulted], 1
    pop rdi
    pop rsi
    mov rdx, [rsp]
    mov rcx, cr2
    lea rax, [rip + ring3_exception]
    mov [rsp], rax
    mov qword ptr [rsp + 8], RING3_CODE
    mov qword ptr [rsp + 16], 2
    lea rax, [rip + exception_stack_end - 8]
    mov [rsp + 24], rax
    mov qword ptr [rsp + 32], RING3_DATA
    iretq
3:  mov eax, STATUS_DOUBLE_FAULT
    out EXIT_PORT, eax
4:  hlt
    jmp 4b

.section .data
.balign 16
gdt:
    .quad 0
    .quad 0x00af9b000000ffff      # ring 0 code, 64 bit
    .quad 0x00cf93000000ffff      # ring 0 data
    .quad 0x00cff3000000ffff      # ring 3 data
    .quad 0x00affb000000ffff      # ring 3 code, 64 bit
task_descriptor:
    .quad 0x0000890000000000 + (task_state_end - task_state - 1)
    .quad 0
gdt_pointer:
    .word gdt_pointer - gdt - 1
    .quad gdt
interrupt_table_pointer:
    .word (EXCEPTIONS + 1) * 16 - 1
    .quad interrupt_table

.balign 16
task_state:
    .long 0
    .quad ring0_stack_end
    .space 90
    .word task_ports - task_state
task_ports:
    .space IO_PORTS / 8           # a clear bit allows the port
    .byte 0xff
task_state_end:

has_faulted:
    .long 0
.globl interrupt_count
interrupt_count:
    .long 0

.section .bss
.balign 16
interrupt_table:
    .space (EXCEPTIONS + 1) * 16
    .space 1024
ring0_stack_end:
    .space 16384
exception_stack_end:
    .space 16

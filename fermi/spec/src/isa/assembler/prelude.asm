// Macros that every program has. Grids that are cut into several launches have the number of their first block in
// c0[0x18] (x) and c0[0x1c] (y); other launches have zeros there.

// %index = number of the thread in x: block, block size, thread. Spoils %spare.
.macro thread_x index spare
    mov b32 %index $ctaidx
    add b32 %index %index c0[0x18]
    mov b32 %spare $ntidx
    mul %index u32 %index u32 %spare
    mov b32 %spare $tidx
    add b32 %index %index %spare
.endm

// The same in y.
.macro thread_y index spare
    mov b32 %index $ctaidy
    add b32 %index %index c0[0x1c]
    mov b32 %spare $ntidy
    mul %index u32 %index u32 %spare
    mov b32 %spare $tidy
    add b32 %index %index %spare
.endm

// %low and %high, a register pair, = the u64 parameter at offset %base plus 4 * %index: an element's address.
.macro element low high index base
    mov b32 %high 0x4
    add %low $c (mul u32 %index u32 %high) c0[%base]
    add %high (mul high u32 %index u32 %high) c0[%base+4] $c
.endm

// The same for elements of %bytes.
.macro element_of bytes low high index base
    mov b32 %high %bytes
    add %low $c (mul u32 %index u32 %high) c0[%base]
    add %high (mul high u32 %index u32 %high) c0[%base+4] $c
.endm

// Waits until all warps of the block are here.
.macro barrier
    bar popc 0x1 $r63 0x0 0x0 0x1
.endm

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

// %quotient = %a / %b, correctly rounded whatever the last bit of rcp is (Markstein 1990: Newton steps with exact
// remainders; `rp` is for mantissas of ones alone). assumption: rcp errs by one unit in the last place at most. %b is
// positive, %a not -0, and %b, 1 / %b and the quotient are far from the ends of the exponent's range. All five are
// different registers; spoils %s and %t.
.macro divide quotient a b s t
    rcp f32 %s %b
    mov b32 %t 0x3f800000
    fma rn f32 %t neg %b %s %t
    fma rn f32 %s %t %s %s
    mov b32 %t 0x3f800000
    fma rn f32 %t neg %b %s %t
    fma rp f32 %quotient %t %s %s
    fma rn f32 %s %t %quotient %s
    mul rn f32 %quotient %a %s
    fma rn f32 %t neg %b %quotient %a
    fma rn f32 %quotient %t %s %quotient
    fma rn f32 %t neg %b %quotient %a
    fma rn f32 %quotient %t %s %quotient
.endm

// %root = the square root of %x, correctly rounded in the same way; 0 for 0. assumption: rsqrt errs by a relative 2^-22.9
// at most. All four are different registers; spoils %s and %t.
.macro square_root root x s t
    rsqrt f32 %s %x
    mul rn f32 %root %x %s
    mul rn f32 %s %s 0x3f000000
    mov b32 %t 0x3f000000
    fma rn f32 %t neg %root %s %t
    fma rn f32 %root %root %t %root
    fma rn f32 %s %s %t %s
    fma rn f32 %t neg %root %root %x
    fma rn f32 %root %t %s %root
    // The reciprocal of 0 has led to a NaN, which loses.
    max f32 %root %root 0x0
.endm

// %word = a random number of 32 bits: a counter's next value, mixed (the finalizer of MurmurHash3). All three are
// different registers; spoils %spare.
.macro random word counter spare
    add b32 %counter %counter 0x9e3779b9
    shr u32 %spare %counter clamp 0x10
    xor b32 %word %counter %spare
    mul %word u32 %word u32 0x85ebca6b
    shr u32 %spare %word clamp 0xd
    xor b32 %word %word %spare
    mul %word u32 %word u32 0xc2b2ae35
    shr u32 %spare %word clamp 0x10
    xor b32 %word %word %spare
.endm

// %counter = the start of a lane's or a warp's own random numbers: its %number and the u32 parameter %seed, mixed. All
// four are different registers; spoils %spare and %other.
.macro random_start counter number seed spare other
    mul %other u32 %number u32 0x85ebca77
    xor b32 %other %other c0[%seed]
    random %counter %other %spare
.endm

// One block of 16 threads, one a hidden unit: from the sums of its inputs to its activation, the output, the errors of
// both layers and the output's new weights. weights[0] is the bias'.
// units: 16 activations, 16 errors, the output, its error
.param sums u64
.param weights u64
.param units u64
.param updated u64
.param rate f32
.shared 64

// %y = 1 / (1 + exp(-%x)), exp(-x) = 2 to the power of x * -log2(e)
.macro sigmoid y x s t u
    mul f32 %s %x 0xbfb8aa3b
    preex2 f32 %s %s
    ex2 f32 %s %s
    mov b32 %t 0x3f800000
    add rn f32 %u %s %t
    mov b32 %x %t
    divide %y %x %u %s %t
.endm

mov b32 $r0 $tidx
element $r2 $r3 $r0 %sums
ld b32 $r4 ca g[$r2d]
sigmoid $r5 $r4 $r6 $r7 $r8
shl b32 $r1 $r0 clamp 0x2
st b32 s[$r1] $r5
barrier
mov b32 $r2 c0[%weights]
mov b32 $r3 c0[%weights+4]
ld b32 $r10 ca g[$r2d]
mov b32 $r11 $r10
mov b32 $r12 0x0
hidden:
add b32 $r2 $c $r2 0x4
add b32 $r3 $r3 0x0 $c
ld b32 $r13 ca g[$r2d]
ld b32 $r14 s[$r12]
fma rn f32 $r11 $r14 $r13 $r11
add b32 $r12 $r12 0x4
set $p0 0x1 lt u32 $r12 0x40
$p0 bra #hidden
sigmoid $r15 $r11 $r6 $r7 $r8
// Its target is 1.
mov b32 $r16 0x3f800000
add rn f32 $r17 $r16 neg $r15
mul rn f32 $r18 $r15 $r17
mul rn f32 $r18 $r18 $r17
// The hidden unit's error, and what the weight between becomes.
element $r2 $r3 $r0 %weights
ld b32 $r13 ca g[$r2d+0x4]
add rn f32 $r17 $r16 neg $r5
mul rn f32 $r17 $r5 $r17
mul rn f32 $r19 $r18 $r13
mul rn f32 $r17 $r17 $r19
element $r2 $r3 $r0 %units
st b32 wb g[$r2d] $r5
st b32 wb g[$r2d+0x40] $r17
mul rn f32 $r20 $r18 c0[%rate]
fma rn f32 $r13 $r20 $r5 $r13
element $r6 $r7 $r0 %updated
st b32 wb g[$r6d+0x4] $r13
set $p0 0x1 ne u32 $r0 0x0
$p0 exit
st b32 wb g[$r2d+0x80] $r15
st b32 wb g[$r2d+0x84] $r18
add rn f32 $r10 $r10 $r20
st b32 wb g[$r6d] $r10
exit

// %STEPS rows further down the wall: to[x] = own weights + the least of what the ways to x - 1, x and x + 1 cost above.
// A block of 256 threads begins with 256 columns and knows after each step one less on either side: it writes %WIDTH.
// Two lines of costs in turn: s[0x000..0x3ff], s[0x400..0x7ff]. Columns outside the wall cost more than any way.
.param wall u64 // The first of the rows.
.param from u64
.param to u64
.param columns u32
.equ STEPS 0x10
.equ WIDTH 0xe0
.shared 2048

mov b32 $r1 $tidx
mov b32 $r0 $ctaidx
add b32 $r0 $r0 c0[0x18]
mov b32 $r2 %WIDTH
mul $r0 u32 $r0 u32 $r2
add b32 $r0 $r0 $r1
// Left of the wall this wraps, and is not less than the number of columns either.
sub b32 $r0 $r0 %STEPS
set $p0 0x1 lt u32 $r0 c0[%columns]
mov b32 $r8 0x7fffffff
element $r2 $r3 $r0 %from
$p0 ld b32 $r8 ca g[$r2d]
element $r2 $r3 $r0 %wall
mov b32 $r14 c0[%columns]
shl b32 $r14 $r14 clamp 0x2
shl b32 $r10 $r1 clamp 0x2
sub b32 $r11 $r10 0x4
max s32 $r11 $r11 0x0
add b32 $r12 $r10 0x4
min s32 $r12 $r12 0x3fc
mov b32 $r13 %STEPS
st b32 s[$r10] $r8
barrier
step:
$p0 ld b32 $r17 cs g[$r2d]
ld b32 $r15 s[$r11]
ld b32 $r16 s[$r12]
min s32 $r15 $r15 $r16
min s32 $r15 $r15 $r8
$p0 add b32 $r8 $r15 $r17
xor b32 $r10 $r10 0x400
xor b32 $r11 $r11 0x400
xor b32 $r12 $r12 0x400
st b32 s[$r10] $r8
add b32 $r2 $c $r2 $r14
add b32 $r3 $r3 0x0 $c
sub b32 $r13 $r13 0x1
set $p1 0x1 ne u32 $r13 0x0
barrier
$p1 bra #step
sub b32 $r1 $r1 %STEPS
set $p0 0x1 lt u32 $r1 %WIDTH and $p0
(not $p0) exit
element $r2 $r3 $r0 %to
st b32 wb g[$r2d] $r8
exit

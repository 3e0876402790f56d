// Of each cell of the image: the differences to its neighbours, and how much diffuses from it, 0 to 1. Cells outside are
// like the nearest inside. `speckle` is the region's variance by its squared mean, `scale` = speckle * (1 + speckle).
.param image u64
.param coefficient u64
.param north u64
.param south u64
.param west u64
.param east u64
.param side u32
.param speckle f32
.param scale f32

thread_x $r0 $r2
thread_y $r1 $r2
mov b32 $r2 c0[%side]
set $p0 0x1 ge u32 $r0 $r2
set $p0 0x1 ge u32 $r1 $r2 or $p0
$p0 exit
sub b32 $r3 $r2 0x1
sub b32 $r4 $r0 0x1
max s32 $r4 $r4 0x0
add b32 $r5 $r0 0x1
min s32 $r5 $r5 $r3
sub b32 $r6 $r1 0x1
max s32 $r6 $r6 0x0
add b32 $r7 $r1 0x1
min s32 $r7 $r7 $r3
add $r8 (mul u32 $r1 u32 $r2) $r0
add $r9 (mul u32 $r1 u32 $r2) $r4
add $r10 (mul u32 $r1 u32 $r2) $r5
add $r11 (mul u32 $r6 u32 $r2) $r0
add $r12 (mul u32 $r7 u32 $r2) $r0
element $r14 $r15 $r8 %image
ld b32 $r20 ca g[$r14d]
element $r14 $r15 $r11 %image
ld b32 $r21 ca g[$r14d]
element $r14 $r15 $r12 %image
ld b32 $r22 ca g[$r14d]
element $r14 $r15 $r9 %image
ld b32 $r23 ca g[$r14d]
element $r14 $r15 $r10 %image
ld b32 $r24 ca g[$r14d]
add rn f32 $r21 $r21 neg $r20
add rn f32 $r22 $r22 neg $r20
add rn f32 $r23 $r23 neg $r20
add rn f32 $r24 $r24 neg $r20
element $r14 $r15 $r8 %north
st b32 wb g[$r14d] $r21
element $r14 $r15 $r8 %south
st b32 wb g[$r14d] $r22
element $r14 $r15 $r8 %west
st b32 wb g[$r14d] $r23
element $r14 $r15 $r8 %east
st b32 wb g[$r14d] $r24
// $r26 = squared gradient, $r27 = Laplacian, both by the cell itself.
mul rn f32 $r0 $r21 $r21
fma rn f32 $r0 $r22 $r22 $r0
fma rn f32 $r0 $r23 $r23 $r0
fma rn f32 $r0 $r24 $r24 $r0
mul rn f32 $r1 $r20 $r20
divide $r26 $r0 $r1 $r2 $r3
add rn f32 $r0 $r21 $r22
add rn f32 $r0 $r0 $r23
add rn f32 $r0 $r0 $r24
divide $r27 $r0 $r20 $r2 $r3
// $r28 = (gradient / 2 - Laplacian^2 / 16) / (1 + Laplacian / 4)^2
mul rn f32 $r0 $r27 $r27
mul rn f32 $r0 $r0 0xbd800000
fma rn f32 $r0 $r26 0x3f000000 $r0
mov b32 $r1 0x3f800000
fma rn f32 $r1 $r27 0x3e800000 $r1
mul rn f32 $r1 $r1 $r1
divide $r28 $r0 $r1 $r2 $r3
// 1 / (1 + ($r28 - speckle) / scale)
mov b32 $r0 c0[%speckle]
add rn f32 $r0 $r28 neg $r0
mov b32 $r1 c0[%scale]
divide $r26 $r0 $r1 $r2 $r3
mov b32 $r0 0x3f800000
add rn f32 $r1 $r26 $r0
divide $r27 $r0 $r1 $r2 $r3
min f32 $r27 $r27 $r0
max f32 $r27 $r27 0x0
element $r14 $r15 $r8 %coefficient
st b32 wb g[$r14d] $r27
exit

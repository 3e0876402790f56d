// One step of heat: to = from + rate * (power + (north + south - 2 from) * y + (east + west - 2 from) * x
//                                       + (ambient - from) * z)
// Cells outside the chip are as warm as the nearest inside.
.param from u64
.param power u64
.param to u64
.param side u32
.param rate f32
.param x f32
.param y f32
.param z f32
.param ambient f32

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
element $r14 $r15 $r8 %from
ld b32 $r20 ca g[$r14d]
element $r14 $r15 $r9 %from
ld b32 $r21 ca g[$r14d]
element $r14 $r15 $r10 %from
ld b32 $r22 ca g[$r14d]
element $r14 $r15 $r11 %from
ld b32 $r23 ca g[$r14d]
element $r14 $r15 $r12 %from
ld b32 $r24 ca g[$r14d]
element $r14 $r15 $r8 %power
ld b32 $r25 ca g[$r14d]
element $r14 $r15 $r8 %to
mov b32 $r26 0xc0000000
add rn f32 $r23 $r23 $r24
fma rn f32 $r23 $r20 $r26 $r23
add rn f32 $r21 $r22 $r21
fma rn f32 $r21 $r20 $r26 $r21
mov b32 $r26 c0[%ambient]
add rn f32 $r26 $r26 neg $r20
fma rn f32 $r25 $r23 c0[%y] $r25
fma rn f32 $r25 $r21 c0[%x] $r25
fma rn f32 $r25 $r26 c0[%z] $r25
fma rn f32 $r20 $r25 c0[%rate] $r20
st b32 wb g[$r14d] $r20
exit

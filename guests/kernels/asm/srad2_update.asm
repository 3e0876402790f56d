// result = image + step * (what flows in from the four neighbours), by the coefficients of the cell itself, of the one
// below it and of the one to the right.
.param image u64
.param result u64
.param coefficient u64
.param north u64
.param south u64
.param west u64
.param east u64
.param side u32
.param step f32

thread_x $r0 $r2
thread_y $r1 $r2
mov b32 $r2 c0[%side]
set $p0 0x1 ge u32 $r0 $r2
set $p0 0x1 ge u32 $r1 $r2 or $p0
$p0 exit
sub b32 $r3 $r2 0x1
add b32 $r4 $r0 0x1
min s32 $r4 $r4 $r3
add b32 $r5 $r1 0x1
min s32 $r5 $r5 $r3
add $r8 (mul u32 $r1 u32 $r2) $r0
add $r9 (mul u32 $r5 u32 $r2) $r0
add $r10 (mul u32 $r1 u32 $r2) $r4
element $r14 $r15 $r8 %coefficient
ld b32 $r20 ca g[$r14d]
element $r14 $r15 $r9 %coefficient
ld b32 $r21 ca g[$r14d]
element $r14 $r15 $r10 %coefficient
ld b32 $r22 ca g[$r14d]
element $r14 $r15 $r8 %north
ld b32 $r16 ca g[$r14d]
element $r14 $r15 $r8 %south
ld b32 $r17 ca g[$r14d]
element $r14 $r15 $r8 %west
ld b32 $r18 ca g[$r14d]
element $r14 $r15 $r8 %east
ld b32 $r19 ca g[$r14d]
element $r14 $r15 $r8 %image
ld b32 $r23 ca g[$r14d]
mul rn f32 $r16 $r20 $r16
fma rn f32 $r16 $r21 $r17 $r16
fma rn f32 $r16 $r20 $r18 $r16
fma rn f32 $r16 $r22 $r19 $r16
fma rn f32 $r23 $r16 c0[%step] $r23
element $r14 $r15 $r8 %result
st b32 wb g[$r14d] $r23
exit

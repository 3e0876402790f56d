// to = from + factor * (ex to the east - ex + ey below - ey), but in the last row and column from. `to` may be `from`.
.param from u64
.param ex u64
.param ey u64
.param to u64
.param side u32
.param factor f32

thread_x $r0 $r2
thread_y $r1 $r2
mov b32 $r2 c0[%side]
set $p0 0x1 ge u32 $r0 $r2
set $p0 0x1 ge u32 $r1 $r2 or $p0
$p0 exit
sub b32 $r4 $r2 0x1
set $p1 0x1 lt u32 $r0 $r4
set $p1 0x1 lt u32 $r1 $r4 and $p1
add $r3 (mul u32 $r1 u32 $r2) $r0
add b32 $r4 $r3 $r2
element $r6 $r7 $r3 %from
ld b32 $r10 ca g[$r6d]
element $r6 $r7 $r3 %ex
$p1 ld b32 $r11 ca g[$r6d]
$p1 ld b32 $r12 ca g[$r6d+0x4]
element $r6 $r7 $r3 %ey
$p1 ld b32 $r13 ca g[$r6d]
element $r6 $r7 $r4 %ey
$p1 ld b32 $r14 ca g[$r6d]
$p1 add rn f32 $r12 $r12 neg $r11
$p1 add rn f32 $r12 $r12 $r14
$p1 add rn f32 $r12 $r12 neg $r13
$p1 fma rn f32 $r10 $r12 c0[%factor] $r10
element $r6 $r7 $r3 %to
st b32 wb g[$r6d] $r10
exit

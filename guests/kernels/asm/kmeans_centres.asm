// Centres become the means of their members; those without members stay. Sums and counts become 0. One block; threads =
// clusters * 16 features, rounded up.
.param centres u64
.param sums u64
.param counts u64
.param words u32

thread_x $r0 $r1
set $p1 0x1 lt u32 $r0 c0[%words]
shr u32 $r1 $r0 clamp 0x4
element $r2 $r3 $r0 %sums
element $r4 $r5 $r1 %counts
mov b32 $r6 0x0
mov b32 $r7 0x0
$p1 ld b32 $r6 ca g[$r2d]
$p1 ld b32 $r7 ca g[$r4d]
// Nobody clears a count that another has not read.
barrier
(not $p1) exit
mov b32 $r8 0x0
st b32 wb g[$r2d] $r8
st b32 wb g[$r4d] $r8
set $p0 0x1 eq u32 $r7 0x0
$p0 exit
cvt rn f32 $r6 u32 $r6
cvt rn f32 $r7 u32 $r7
divide $r8 $r6 $r7 $r9 $r10
element $r2 $r3 $r0 %centres
st b32 wb g[$r2d] $r8
exit

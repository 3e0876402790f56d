// The first points are the centres; nothing is summed up. One block; threads = clusters * 16 features, rounded up.
.param points u64
.param centres u64
.param sums u64
.param counts u64
.param n u32
.param words u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%words]
$p0 exit
and b32 $r1 $r0 0xf
shr u32 $r2 $r0 clamp 0x4
mov b32 $r3 c0[%n]
add $r4 (mul u32 $r1 u32 $r3) $r2
element $r6 $r7 $r4 %points
ld b32 $r5 ca g[$r6d]
element $r6 $r7 $r0 %centres
st b32 wb g[$r6d] $r5
mov b32 $r5 0x0
element $r6 $r7 $r0 %sums
st b32 wb g[$r6d] $r5
element $r6 $r7 $r2 %counts
st b32 wb g[$r6d] $r5
exit

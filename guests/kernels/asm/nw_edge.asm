// Row 0 and column 0 of the scores: nothing but gaps.
.param scores u64
.param side u32
.param gap u32

thread_x $r0 $r1
mov b32 $r2 c0[%side]
set $p0 0x1 gt u32 $r0 $r2
$p0 exit
mul $r6 u32 $r0 u32 c0[%gap]
add $r3 (mul u32 $r0 u32 $r2) $r0
element $r4 $r5 $r0 %scores
st b32 wb g[$r4d] $r6
element $r4 $r5 $r3 %scores
st b32 wb g[$r4d] $r6
exit

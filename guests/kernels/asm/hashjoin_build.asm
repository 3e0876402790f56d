// Each row of the build side goes to the front of its bucket's chain: there are as many buckets as rows, and a key's is
// as far among them as its product with 2^32 / the golden ratio is in 2^32.
.param keys u64
.param heads u64
.param following u64
.param rows u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%rows]
$p0 exit
element $r2 $r3 $r0 %keys
ld b32 $r4 cs g[$r2d]
mov b32 $r5 c0[%rows]
mul $r4 u32 $r4 u32 0x9e3779b1
mul high $r4 u32 $r4 u32 $r5
element $r2 $r3 $r4 %heads
exch b32 $r5 g[$r2d] $r0
element $r2 $r3 $r0 %following
st b32 wb g[$r2d] $r5
exit

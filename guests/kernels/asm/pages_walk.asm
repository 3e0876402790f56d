// RW: each lane draws a page until it finds a free one and sets its bit. A step is a draw; at most `tries` of them, so a
// lane ends whatever the pool is like. What others do cannot hold it up: it waits for nobody.
.param bitmap u64
.param given u64
.param steps u64
.param pages u32
.param lanes u32
.param seed u32
.param tries u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%lanes]
$p0 exit
random_start $r4 $r0 %seed $r8 $r9
mov b32 $r5 c0[%pages]
mov b32 $r6 0x0
mov b32 $r7 0xffffffff
prebrk #done
try:
set $p0 0x1 ge u32 $r6 c0[%tries]
$p0 brk
add b32 $r6 $r6 0x1
random $r8 $r4 $r9
mul high $r8 u32 $r8 u32 $r5
shr u32 $r9 $r8 clamp 0x5
element $r2 $r3 $r9 %bitmap
and b32 $r9 $r8 0x1f
mov b32 $r10 0x1
shl b32 $r10 $r10 clamp $r9
ld b32 $r9 cg g[$r2d]
and b32 $r9 $r9 $r10
set $p0 0x1 eq u32 $r9 0x0
// It looks free: the lane that changes the bit has the page.
$p0 ld or u32 $r9 g[$r2d] $r10
$p0 and b32 $r9 $r9 $r10
set $p0 0x1 eq u32 $r9 0x0
$p0 mov b32 $r7 $r8
$p0 brk
bra #try
done:
element $r2 $r3 $r0 %given
st b32 wb g[$r2d] $r7
element $r2 $r3 $r0 %steps
st b32 wb g[$r2d] $r6
exit

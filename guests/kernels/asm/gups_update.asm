// Each thread goes on from its seed with Marsaglia's xorshift32 (13, 17, 5), never 0. Each number goes by xor into the
// word of the table that lies as far in it as the number does in 2^32: in any order, the result is the same.
.param seeds u64
.param table u64
.param threads u32
.param words u32
.equ UPDATES 0x10

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%threads]
$p0 exit
element $r2 $r3 $r0 %seeds
ld b32 $r4 cs g[$r2d]
mov b32 $r5 c0[%words]
mov b32 $r6 %UPDATES
update:
shl b32 $r7 $r4 clamp 0xd
xor b32 $r4 $r4 $r7
shr u32 $r7 $r4 clamp 0x11
xor b32 $r4 $r4 $r7
shl b32 $r7 $r4 clamp 0x5
xor b32 $r4 $r4 $r7
mul high $r7 u32 $r4 u32 $r5
element $r2 $r3 $r7 %table
red xor u32 g[$r2d] $r4
sub b32 $r6 $r6 0x1
set $p0 0x1 ne u32 $r6 0x0
$p0 bra #update
exit

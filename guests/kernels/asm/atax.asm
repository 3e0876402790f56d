// out[i] = sum over j of matrix[i * across + j * along] * vector[j], a chain of fused multiply-adds over ascending j from
// +0. Each thread has one i.
.param matrix u64
.param vector u64
.param out u64
.param side u32
.param across u32
.param along u32

thread_x $r0 $r1
mov b32 $r6 c0[%side]
set $p0 0x1 ge u32 $r0 $r6
$p0 exit
mul $r1 u32 $r0 u32 c0[%across]
element $r2 $r3 $r1 %matrix
mov b32 $r4 c0[%vector]
mov b32 $r5 c0[%vector+4]
mov b32 $r7 c0[%along]
shl b32 $r7 $r7 clamp 0x2
mov b32 $r8 0x0
term:
ld b32 $r9 ca g[$r2d]
ld b32 $r10 ca g[$r4d]
add b32 $r2 $c $r2 $r7
add b32 $r3 $r3 0x0 $c
add b32 $r4 $c $r4 0x4
add b32 $r5 $r5 0x0 $c
fma rn f32 $r8 $r9 $r10 $r8
sub b32 $r6 $r6 0x1
set $p0 0x1 ne u32 $r6 0x0
$p0 bra #term
element $r2 $r3 $r0 %out
st b32 wb g[$r2d] $r8
exit

// out = 3 x 3 convolution of in, row-major, side x side; zero on the border. Factors row by row.
.param in u64
.param out u64
.param side u32
.param f00 f32
.param f01 f32
.param f02 f32
.param f10 f32
.param f11 f32
.param f12 f32
.param f20 f32
.param f21 f32
.param f22 f32

thread_x $r0 $r2
thread_y $r1 $r2
mov b32 $r2 c0[%side]
set $p0 0x1 ge u32 $r0 $r2
set $p0 0x1 ge u32 $r1 $r2 or $p0
$p0 exit
add $r3 (mul u32 $r1 u32 $r2) $r0
element $r4 $r5 $r3 %out
// Inside: 1 <= x, y <= side - 2, without wrapping for side 1.
sub b32 $r6 $r0 0x1
sub b32 $r7 $r1 0x1
sub b32 $r8 $r2 0x2
mov b32 $r10 0x0
set $p1 0x1 ge u32 $r6 $r8
set $p1 0x1 ge u32 $r7 $r8 or $p1
joinat #store
$p1 bra #border
add $r3 (mul u32 $r7 u32 $r2) $r6
element $r12 $r13 $r3 %in
shl b32 $r9 $r2 clamp 0x2
ld b32 $r16 ca g[$r12d]
ld b32 $r17 ca g[$r12d+0x4]
ld b32 $r18 ca g[$r12d+0x8]
add b32 $r12 $c $r12 $r9
add b32 $r13 $r13 0x0 $c
ld b32 $r19 ca g[$r12d]
ld b32 $r20 ca g[$r12d+0x4]
ld b32 $r21 ca g[$r12d+0x8]
add b32 $r12 $c $r12 $r9
add b32 $r13 $r13 0x0 $c
ld b32 $r22 ca g[$r12d]
ld b32 $r23 ca g[$r12d+0x4]
ld b32 $r24 ca g[$r12d+0x8]
fma rn f32 $r10 $r16 c0[%f00] $r10
fma rn f32 $r10 $r17 c0[%f01] $r10
fma rn f32 $r10 $r18 c0[%f02] $r10
fma rn f32 $r10 $r19 c0[%f10] $r10
fma rn f32 $r10 $r20 c0[%f11] $r10
fma rn f32 $r10 $r21 c0[%f12] $r10
fma rn f32 $r10 $r22 c0[%f20] $r10
fma rn f32 $r10 $r23 c0[%f21] $r10
fma rn f32 $r10 $r24 c0[%f22] $r10
border:
join nop
store:
st b32 wb g[$r4d] $r10
exit

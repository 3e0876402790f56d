// The tiles that are both below and to the right of the tile at `corner`, from -> to: each minus the product of the
// tile at its left in the tile's columns and of that above it in the tile's rows, term by term. Blocks of 16 x 16; block
// x = row of tiles * rest + column of tiles, `divisor` = 0x10000 / rest + 1.
// Shared: s[0x000..0x3ff] the tile at the left, s[0x400..0x7ff] the tile above.
.param from u64
.param to u64
.param side u32
.param corner u32
.param rest u32
.param divisor u32
.shared 2048

mov b32 $r0 $tidx
mov b32 $r1 $tidy
mov b32 $r2 $ctaidx
add b32 $r2 $r2 c0[0x18]
mov b32 $r3 $ctaidy
add b32 $r3 $r3 c0[0x1c]
mov b32 $r4 c0[%side]
mov b32 $r5 c0[%rest]
mul $r6 u32 $r2 u32 c0[%divisor]
shr u32 $r6 $r6 clamp 0x10
mul $r7 u32 $r6 u32 $r5
sub b32 $r7 $r2 $r7
// $r6, $r7 = row and column of the tile's first word from the corner, then of this thread's word.
add b32 $r6 $r6 0x1
add b32 $r7 $r7 0x1
add b32 $r6 (shl $r6 0x4) $r1
add b32 $r7 (shl $r7 0x4) $r0
mul $r8 u32 $r4 u32 $r4
mov b32 $r9 c0[%corner]
add $r8 (mul u32 $r3 u32 $r8) $r9
add $r9 (mul u32 $r6 u32 $r4) $r8
add b32 $r10 $r9 $r0
element $r12 $r13 $r10 %to
ld b32 $r16 ca g[$r12d]
add $r10 (mul u32 $r1 u32 $r4) $r8
add b32 $r10 $r10 $r7
element $r12 $r13 $r10 %to
ld b32 $r17 ca g[$r12d]
add b32 $r9 $r9 $r7
element $r14 $r15 $r9 %from
ld b32 $r18 ca g[$r14d]
element $r14 $r15 $r9 %to
add b32 $r10 (shl $r1 0x4) $r0
shl b32 $r10 $r10 clamp 0x2
st b32 s[$r10] $r16
st b32 s[$r10+0x400] $r17
barrier
shl b32 $r8 $r1 clamp 0x6
shl b32 $r9 $r0 clamp 0x2
mov b32 $r10 0x0
term:
ld b128 $r20q s[$r8]
ld b32 $r24 s[$r9+0x400]
ld b32 $r25 s[$r9+0x440]
ld b32 $r26 s[$r9+0x480]
ld b32 $r27 s[$r9+0x4c0]
fma rn f32 $r18 neg $r20 $r24 $r18
fma rn f32 $r18 neg $r21 $r25 $r18
fma rn f32 $r18 neg $r22 $r26 $r18
fma rn f32 $r18 neg $r23 $r27 $r18
add b32 $r8 $r8 0x10
add b32 $r9 $r9 0x100
add b32 $r10 $r10 0x4
set $p0 0x1 lt u32 $r10 0x10
$p0 bra #term
st b32 wb g[$r14d] $r18
exit

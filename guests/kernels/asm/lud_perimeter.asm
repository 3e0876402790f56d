// The tiles to the right of the factorised one at `corner` and below it, from -> to. A block does the n-th of both:
// threads 0 to 15 one column each of that to the right, threads 16 to 31 one row each of that below. Both solve
// v[i] -= t[i][k] * v[k] for k < i in ascending order, where t is the tile for columns and its transpose for rows; rows
// are divided by the diagonal.
// s[0x000..0x3ff]: the tile, s[0x400..0x7ff]: its transpose, s[0x800..0xfff]: v of all threads.
.param from u64
.param to u64
.param side u32
.param corner u32
.shared 4096

mov b32 $r0 $tidx
mov b32 $r1 $ctaidy
add b32 $r1 $r1 c0[0x1c]
mov b32 $r2 c0[%side]
mul $r3 u32 $r2 u32 $r2
mov b32 $r4 c0[%corner]
// $r3 = first word of the factorised tile.
add $r3 (mul u32 $r1 u32 $r3) $r4
mov b32 $r4 $ctaidx
add b32 $r4 $r4 c0[0x18]
add b32 $r4 $r4 0x1
shl b32 $r4 $r4 clamp 0x4
and b32 $r5 $r0 0xf
set $p1 0x1 ge u32 $r0 0x10
// The tile: 32 words at a time, which are two rows.
shr u32 $r6 $r0 clamp 0x4
mov b32 $r7 0x0
tile:
add $r8 (mul u32 $r6 u32 $r2) $r5
add b32 $r8 $r8 $r3
element $r10 $r11 $r8 %to
ld b32 $r12 ca g[$r10d]
add b32 $r13 (shl $r6 0x4) $r5
shl b32 $r13 $r13 clamp 0x2
st b32 s[$r13] $r12
add b32 $r13 (shl $r5 0x4) $r6
shl b32 $r13 $r13 clamp 0x2
st b32 s[$r13+0x400] $r12
add b32 $r6 $r6 0x2
set $p0 0x1 lt u32 $r6 0x10
$p0 bra #tile
barrier
// First word of v: down a column of the tile to the right, or along a row of that below. $r6 = step in bytes.
add b32 $r7 $r4 $r5
mul $r8 u32 $r7 u32 $r2
$p1 mov b32 $r7 $r8
add b32 $r7 $r7 $r3
element $r8 $r9 $r7 %from
element $r10 $r11 $r7 %to
shl b32 $r6 $r2 clamp 0x2
$p1 mov b32 $r6 0x4
// $r7 = t[i][0], $r16 = t[i][i], $r17 = v[0]
mov b32 $r7 0x0
$p1 mov b32 $r7 0x400
mov b32 $r16 0x0
shl b32 $r17 $r0 clamp 0x2
mov b32 $r18 0x0
value:
ld b32 $r20 ca g[$r8d]
mov b32 $r12 $r7
mov b32 $r13 $r17
mov b32 $r14 0x0
set $p0 0x1 eq u32 $r18 0x0
$p0 bra #known
term:
ld b32 $r21 s[$r12]
ld b32 $r22 s[$r13+0x800]
fma rn f32 $r20 neg $r21 $r22 $r20
add b32 $r12 $r12 0x4
add b32 $r13 $r13 0x80
add b32 $r14 $r14 0x1
set $p0 0x1 lt u32 $r14 $r18
$p0 bra #term
known:
ld b32 $r21 s[$r16]
divide $r22 $r20 $r21 $r23 $r24
$p1 mov b32 $r20 $r22
st b32 s[$r13+0x800] $r20
st b32 wb g[$r10d] $r20
add b32 $r8 $c $r8 $r6
add b32 $r9 $r9 0x0 $c
add b32 $r10 $c $r10 $r6
add b32 $r11 $r11 0x0 $c
add b32 $r7 $r7 0x40
add b32 $r16 $r16 0x44
add b32 $r18 $r18 0x1
set $p0 0x1 lt u32 $r18 0x10
$p0 bra #value
exit

// A diagonal of tiles of 32 x 32 cells, each of which is one warp. Of a cell at row y, column x of the similarities, which
// are side x side, the score is at row y + 1, column x + 1 of side + 1 x side + 1:
//   score = max(northwest + similarity, max(north, west) + gap)
// Each lane has a column and is one row behind the lane west of it, which leaves its score in s[0x1080..0x10ff]; the
// scores west of the tile are in s[0x1000..0x107f]. s[0x000..0xfff] is the tile: similarities become scores. Lanes of a
// warp are in step, so no barrier is needed. Cells outside the matrix are computed, too, but reach none inside.
.param similarity u64
.param scores u64
.param side u32
.param gap u32
.param diagonal u32
.param first u32 // Column of the diagonal's first tile.
.shared 4352

mov b32 $r0 $tidx
mov b32 $r1 $ctaidx
add b32 $r1 $r1 c0[0x18]
add b32 $r1 $r1 c0[%first]
mov b32 $r2 c0[%diagonal]
sub b32 $r2 $r2 $r1
// $r1 column, $r2 row of the lane's first cell.
add b32 $r1 (shl $r1 0x5) $r0
shl b32 $r2 $r2 clamp 0x5
mov b32 $r3 c0[%side]
add b32 $r4 $r3 0x1
set $p2 0x1 lt u32 $r1 $r3
mov b32 $r26 c0[%gap]
// Similarities, a row at a time. $r6d is of global, $r8 of shared memory.
add $r5 (mul u32 $r2 u32 $r3) $r1
element $r6 $r7 $r5 %similarity
shl b32 $r10 $r3 clamp 0x2
shl b32 $r8 $r0 clamp 0x2
mov b32 $r9 0x0
similarity:
add b32 $r11 $r2 $r9
set $p0 0x1 lt u32 $r11 $r3 and $p2
mov b32 $r12 0x0
$p0 ld b32 $r12 cs g[$r6d]
st b32 s[$r8] $r12
add b32 $r6 $c $r6 $r10
add b32 $r7 $r7 0x0 $c
add b32 $r8 $r8 0x80
add b32 $r9 $r9 0x1
set $p0 0x1 lt u32 $r9 0x20
$p0 bra #similarity
// Scores north ($r20) and northwest ($r21) of the lane's first cell.
mov b32 $r20 0x0
mov b32 $r21 0x0
add $r5 (mul u32 $r2 u32 $r4) $r1
element $r6 $r7 $r5 %scores
$p2 ld b32 $r21 ca g[$r6d]
$p2 ld b32 $r20 ca g[$r6d+0x4]
// Scores west of the tile: each lane loads one of them.
sub b32 $r11 $r1 $r0
add b32 $r12 $r2 $r0
set $p0 0x1 lt u32 $r12 $r3
add b32 $r12 $r12 0x1
add $r5 (mul u32 $r12 u32 $r4) $r11
element $r6 $r7 $r5 %scores
mov b32 $r12 0x0
$p0 ld b32 $r12 ca g[$r6d]
shl b32 $r8 $r0 clamp 0x2
st b32 s[$r8+0x1000] $r12
// West of the lane ($r13, and $r14 on after each step): lane 0 walks down the tile's western border.
set $p1 0x1 eq u32 $r0 0x0
add b32 $r13 $r8 0x107c
mov b32 $r14 0x0
$p1 mov b32 $r13 0x1000
$p1 mov b32 $r14 0x4
// $r15 is the row, below 0 until the lane's turn, $r16 its cell in shared memory.
sub b32 $r15 $r63 $r0
mul $r16 s32 $r15 s32 0x80
add b32 $r16 $r16 $r8
mov b32 $r9 0x0
step:
set $p0 0x1 lt u32 $r15 0x20
$p0 ld b32 $r22 s[$r13]
$p0 ld b32 $r23 s[$r16]
$p0 max s32 $r24 $r20 $r22
$p0 add b32 $r24 $r24 $r26
$p0 add b32 $r23 $r23 $r21
$p0 max s32 $r20 $r23 $r24
$p0 mov b32 $r21 $r22
$p0 st b32 s[$r16] $r20
$p0 st b32 s[$r8+0x1080] $r20
add b32 $r13 $r13 $r14
add b32 $r15 $r15 0x1
add b32 $r16 $r16 0x80
add b32 $r9 $r9 0x1
set $p0 0x1 lt u32 $r9 0x3f
$p0 bra #step
// Scores to where they belong, a row at a time.
add b32 $r11 $r2 0x1
add $r5 (mul u32 $r11 u32 $r4) $r1
add b32 $r5 $r5 0x1
element $r6 $r7 $r5 %scores
shl b32 $r10 $r4 clamp 0x2
mov b32 $r9 0x0
store:
add b32 $r11 $r2 $r9
set $p0 0x1 lt u32 $r11 $r3 and $p2
ld b32 $r12 s[$r8]
$p0 st b32 wb g[$r6d] $r12
add b32 $r6 $c $r6 $r10
add b32 $r7 $r7 0x0 $c
add b32 $r8 $r8 0x80
add b32 $r9 $r9 0x1
set $p0 0x1 lt u32 $r9 0x20
$p0 bra #store
exit

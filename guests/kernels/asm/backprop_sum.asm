// to[block][hidden] = sum of 256 rows of from: each of 16 threads sums every 16th in their order, the rest is a tree.
// Rows at and behind `rows` are 0. Blocks of 16 hidden units x 16 threads.
.param from u64
.param to u64
.param rows u32
.shared 1024

mov b32 $r0 $tidx
mov b32 $r2 $tidy
mov b32 $r12 $ctaidy
add b32 $r12 $r12 c0[0x1c]
add b32 $r1 (shl $r12 0x8) $r2
mov b32 $r4 0x0
mov b32 $r5 0x0
row:
set $p0 0x1 lt u32 $r1 c0[%rows]
add b32 $r3 (shl $r1 0x4) $r0
element $r6 $r7 $r3 %from
mov b32 $r8 0x0
$p0 ld b32 $r8 ca g[$r6d]
add rn f32 $r4 $r4 $r8
add b32 $r1 $r1 0x10
add b32 $r5 $r5 0x1
set $p0 0x1 lt u32 $r5 0x10
$p0 bra #row
add b32 $r6 (shl $r2 0x4) $r0
shl b32 $r6 $r6 clamp 0x2
st b32 s[$r6] $r4
barrier
mov b32 $r7 0x1
tree:
shl b32 $r8 $r7 clamp 0x6
add b32 $r8 $r8 $r6
shl b32 $r9 $r7 clamp 0x1
sub b32 $r10 $r9 0x1
and b32 $r10 $r10 $r2
set $p1 0x1 eq u32 $r10 0x0
$p1 ld b32 $r11 s[$r8]
$p1 add rn f32 $r4 $r4 $r11
$p1 st b32 s[$r6] $r4
barrier
mov b32 $r7 $r9
set $p0 0x1 lt u32 $r7 0x10
$p0 bra #tree
set $p0 0x1 ne u32 $r2 0x0
$p0 exit
add b32 $r3 (shl $r12 0x4) $r0
element $r6 $r7 $r3 %to
st b32 wb g[$r6d] $r4
exit

// partial[block][hidden] = sum over 16 inputs of input * weight, as a tree. Blocks of 16 hidden units x 16 inputs.
.param inputs u64
.param weights u64
.param partial u64
.param rows u32
.shared 1024

thread_x $r0 $r2
thread_y $r1 $r2
set $p0 0x1 lt u32 $r1 c0[%rows]
add b32 $r3 (shl $r1 0x4) $r0
mov b32 $r4 0x0
mov b32 $r5 0x0
element $r6 $r7 $r3 %weights
$p0 ld b32 $r4 ca g[$r6d]
element $r6 $r7 $r1 %inputs
$p0 ld b32 $r5 ca g[$r6d]
mul rn f32 $r4 $r4 $r5
add b32 $r6 (shl $r2 0x4) $r0
shl b32 $r6 $r6 clamp 0x2
st b32 s[$r6] $r4
barrier
mov b32 $r7 0x1
tree:
// Every second row takes the one behind, then every fourth, and so on.
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
shr u32 $r1 $r1 clamp 0x4
add b32 $r3 (shl $r1 0x4) $r0
element $r6 $r7 $r3 %partial
st b32 wb g[$r6d] $r4
exit

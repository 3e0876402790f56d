// Zeros, and how many words were none is added to `left`.
.param words u64
.param left u64
.param count u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%count]
$p0 exit
element $r2 $r3 $r0 %words
ld b32 $r4 cs g[$r2d]
mov b32 $r5 0x0
st b32 wb g[$r2d] $r5
set $p0 0x1 ne u32 $r4 0x0
mov b32 $r2 c0[%left]
mov b32 $r3 c0[%left+4]
mov b32 $r5 0x1
$p0 red add u32 g[$r2d] $r5
exit

// The first frame: each point is where it starts, and its template is the 16 x 16 pixels from there. A block of 256
// threads a point. Pixels outside the frame are like the nearest inside.
.param frame u64
.param starts u64
.param templates u64
.param track u64
.param side u32
.param frames u32

mov b32 $r0 $tidx
mov b32 $r1 $ctaidx
add b32 $r1 $r1 c0[0x18]
element_of 0x8 $r2 $r3 $r1 %starts
ld b64 $r4d ca g[$r2d]
mov b32 $r6 c0[%side]
sub b32 $r7 $r6 0x1
and b32 $r8 $r0 0xf
shr u32 $r9 $r0 clamp 0x4
add b32 $r8 $r8 $r4
add b32 $r9 $r9 $r5
min s32 $r8 $r8 $r7
min s32 $r9 $r9 $r7
add $r8 (mul u32 $r9 u32 $r6) $r8
element $r2 $r3 $r8 %frame
ld b32 $r9 ca g[$r2d]
add b32 $r8 (shl $r1 0x8) $r0
element $r2 $r3 $r8 %templates
st b32 wb g[$r2d] $r9
set $p0 0x1 ne u32 $r0 0x0
$p0 exit
mul $r8 u32 $r1 u32 c0[%frames]
element_of 0x8 $r2 $r3 $r8 %track
st b64 wb g[$r2d] $r4d
exit

// Gives pages of a bitmap back, and forgets them. What is no page, or is free already, changes nothing and is counted.
.param bitmap u64
.param given u64
.param faults u64
.param pages u32
.param lanes u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%lanes]
$p0 exit
element $r4 $r5 $r0 %given
ld b32 $r6 cg g[$r4d]
// Lanes that got none have none to give.
set $p0 0x1 eq u32 $r6 0xffffffff
$p0 exit
shr u32 $r7 $r6 clamp 0x5
element $r2 $r3 $r7 %bitmap
and b32 $r7 $r6 0x1f
mov b32 $r8 0x1
shl b32 $r8 $r8 clamp $r7
xor b32 $r9 $r8 0xffffffff
set $p0 0x1 lt u32 $r6 c0[%pages]
mov b32 $r7 0x0
$p0 ld and u32 $r7 g[$r2d] $r9
and b32 $r7 $r7 $r8
set $p0 0x1 eq u32 $r7 0x0
mov b32 $r9 0xffffffff
(not $p0) st b32 wb g[$r4d] $r9
mov b32 $r2 c0[%faults]
mov b32 $r3 c0[%faults+4]
mov b32 $r8 0x1
$p0 red add u32 g[$r2d] $r8
exit

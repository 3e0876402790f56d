// found.number = the first place at found.distance, but for those up to the one before.
.param distances u64
.param before u64
.param found u64
.param n u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%n]
$p0 exit
element $r2 $r3 $r0 %distances
ld b32 $r6 ca g[$r2d]
mov b32 $r4 c0[%found]
mov b32 $r5 c0[%found+4]
ld b32 $r7 ca g[$r4d]
set $p0 0x1 ne u32 $r6 $r7
$p0 exit
mov b32 $r2 c0[%before]
mov b32 $r3 c0[%before+4]
ld b64 $r8d ca g[$r2d]
set $p0 0x1 lt u32 $r0 $r9
set $p0 0x1 eq u32 $r6 $r8 and $p0
$p0 exit
add b32 $r0 $r0 0x1
red min u32 g[$r4d+0x4] $r0
exit

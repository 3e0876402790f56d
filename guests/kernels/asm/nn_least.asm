// found.distance = the least distance behind the one found before. Patterns of floats that are not negative are in the
// order of their values. Pairs: distance, number of the place from 1.
.param distances u64
.param before u64
.param found u64
.param n u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%n]
$p0 exit
element $r2 $r3 $r0 %distances
ld b32 $r6 ca g[$r2d]
mov b32 $r4 c0[%before]
mov b32 $r5 c0[%before+4]
ld b64 $r8d ca g[$r4d]
mov b32 $r4 c0[%found]
mov b32 $r5 c0[%found+4]
// Not those up to the one before.
set $p0 0x1 lt u32 $r0 $r9
set $p0 0x1 eq u32 $r6 $r8 and $p0
set $p0 0x1 lt u32 $r6 $r8 or $p0
$p0 exit
// Most see here that another is nearer; what they see may be old, the minimum is not.
ld b32 $r7 cv g[$r4d]
set $p0 0x1 ge u32 $r6 $r7
$p0 exit
red min u32 g[$r4d] $r6
exit

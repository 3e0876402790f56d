// to = from - (hz - hz above) / 2; in the first row the source. `to` may be `from`.
.param from u64
.param hz u64
.param to u64
.param side u32
.param source f32

thread_x $r0 $r2
thread_y $r1 $r2
mov b32 $r2 c0[%side]
set $p0 0x1 ge u32 $r0 $r2
set $p0 0x1 ge u32 $r1 $r2 or $p0
$p0 exit
set $p1 0x1 ne u32 $r1 0x0
add $r3 (mul u32 $r1 u32 $r2) $r0
sub b32 $r4 $r3 $r2
mov b32 $r10 c0[%source]
element $r6 $r7 $r3 %from
$p1 ld b32 $r10 ca g[$r6d]
element $r6 $r7 $r3 %hz
$p1 ld b32 $r11 ca g[$r6d]
element $r6 $r7 $r4 %hz
$p1 ld b32 $r12 ca g[$r6d]
$p1 add rn f32 $r11 $r11 neg $r12
$p1 fma rn f32 $r10 $r11 0xbf000000 $r10
element $r6 $r7 $r3 %to
st b32 wb g[$r6d] $r10
exit

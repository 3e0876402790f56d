// distances[i] = how far places[i] is from (latitude, longitude), in degrees as if the earth were flat
.param places u64
.param distances u64
.param n u32
.param latitude f32
.param longitude f32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%n]
$p0 exit
element_of 0x8 $r2 $r3 $r0 %places
ld b64 $r4d ca g[$r2d]
mov b32 $r6 c0[%latitude]
mov b32 $r7 c0[%longitude]
element $r2 $r3 $r0 %distances
add rn f32 $r4 $r6 neg $r4
add rn f32 $r5 $r7 neg $r5
mul rn f32 $r5 $r5 $r5
fma rn f32 $r4 $r4 $r4 $r5
square_root $r8 $r4 $r9 $r10
st b32 wb g[$r2d] $r8
exit

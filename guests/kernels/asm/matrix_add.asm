// out[i] = a[i] + b[i]
.param a u64
.param b u64
.param out u64
.param n u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%n]
$p0 exit
element $r2 $r3 $r0 %a
element $r4 $r5 $r0 %b
ld b32 $r6 ca g[$r2d]
ld b32 $r7 ca g[$r4d]
element $r2 $r3 $r0 %out
add rn f32 $r6 $r6 $r7
st b32 wb g[$r2d] $r6
exit

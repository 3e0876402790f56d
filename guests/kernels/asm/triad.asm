// a[i] = b[i] + q * c[i], each thread one element
.param a u64
.param b u64
.param c u64
.param q f32
.param n u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%n]
$p0 exit
element $r2 $r3 $r0 %b
element $r4 $r5 $r0 %c
ld b32 $r6 cs g[$r2d]
ld b32 $r7 cs g[$r4d]
element $r2 $r3 $r0 %a
fma rn f32 $r6 $r7 c0[%q] $r6
st b32 cs g[$r2d] $r6
exit

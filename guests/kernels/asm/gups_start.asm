// table[i] = i
.param table u64
.param words u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%words]
$p0 exit
element $r2 $r3 $r0 %table
st b32 wb g[$r2d] $r0
exit

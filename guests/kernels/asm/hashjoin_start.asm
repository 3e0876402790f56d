// Empty chains.
.param heads u64
.param rows u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%rows]
$p0 exit
mov b32 $r4 0xffffffff
element $r2 $r3 $r0 %heads
st b32 wb g[$r2d] $r4
exit

// No node is reached but the first, which is the frontier.
.param frontier u64
.param next u64
.param cost u64
.param nodes u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%nodes]
$p0 exit
set $p1 0x1 eq u32 $r0 0x0
mov b32 $r6 0x0
mov b32 $r7 0xffffffff
$p1 mov b32 $r7 0x0
$p1 mov b32 $r6 0x1
element $r2 $r3 $r0 %frontier
st b32 wb g[$r2d] $r6
mov b32 $r6 0x0
element $r2 $r3 $r0 %next
st b32 wb g[$r2d] $r6
element $r2 $r3 $r0 %cost
st b32 wb g[$r2d] $r7
exit

// What comes next is the frontier; %more tells whether that is anything.
.param frontier u64
.param next u64
.param more u64
.param nodes u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%nodes]
$p0 exit
element $r2 $r3 $r0 %next
ld b32 $r6 ca g[$r2d]
set $p0 0x1 eq u32 $r6 0x0
$p0 exit
element $r4 $r5 $r0 %frontier
st b32 wb g[$r4d] $r6
mov b32 $r4 c0[%more]
mov b32 $r5 c0[%more+4]
st b32 wb g[$r4d] $r6
mov b32 $r6 0x0
st b32 wb g[$r2d] $r6
exit

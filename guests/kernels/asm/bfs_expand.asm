// Each node of the frontier leaves it; its neighbours without a cost get one more than its own and come next.
// Several nodes may give one neighbour its cost: it is the same.
.param first u64
.param edges u64
.param frontier u64
.param next u64
.param cost u64
.param nodes u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%nodes]
$p0 exit
element $r2 $r3 $r0 %frontier
ld b32 $r6 ca g[$r2d]
set $p0 0x1 eq u32 $r6 0x0
$p0 exit
mov b32 $r6 0x0
st b32 wb g[$r2d] $r6
element $r2 $r3 $r0 %first
ld b32 $r4 ca g[$r2d]
ld b32 $r5 ca g[$r2d+0x4]
element $r2 $r3 $r0 %cost
ld b32 $r6 ca g[$r2d]
add b32 $r6 $r6 0x1
mov b32 $r7 0x1
prebrk #done
edge:
set $p0 0x1 ge u32 $r4 $r5
$p0 brk
element $r2 $r3 $r4 %edges
ld b32 $r8 ca g[$r2d]
element $r2 $r3 $r8 %cost
ld b32 $r9 ca g[$r2d]
set $p1 0x1 eq u32 $r9 0xffffffff
$p1 st b32 wb g[$r2d] $r6
element $r2 $r3 $r8 %next
$p1 st b32 wb g[$r2d] $r7
add b32 $r4 $r4 0x1
bra #edge
done:
exit

// Each node of the frontier leaves it and offers its neighbours its distance and that of the edge; those for which it
// is less than theirs come next. A node that is itself brought nearer meanwhile comes next, too, so nothing is lost.
.param first u64
.param edges u64
.param lengths u64
.param frontier u64
.param next u64
.param distance u64
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
// Atomics work in L2, so the distance is read there.
element $r2 $r3 $r0 %distance
ld b32 $r6 cg g[$r2d]
mov b32 $r7 0x1
prebrk #done
edge:
set $p0 0x1 ge u32 $r4 $r5
$p0 brk
element $r2 $r3 $r4 %lengths
ld b32 $r9 ca g[$r2d]
element $r2 $r3 $r4 %edges
ld b32 $r8 ca g[$r2d]
add b32 $r9 $r9 $r6
element $r2 $r3 $r8 %distance
ld min u32 $r10 g[$r2d] $r9
set $p1 0x1 lt u32 $r9 $r10
element $r2 $r3 $r8 %next
$p1 st b32 wb g[$r2d] $r7
add b32 $r4 $r4 0x1
bra #edge
done:
exit

// Takes from a list of free pages or gives back to it, under one lock: the oldest baseline. Page i's link is next[i]; the
// words of `control` are the lock and the first page, all ones ending the list.
//
// All lanes of a warp try the lock together, and the one that gets it does its work and unlocks in the same round. So no
// lane waits for one that waits for it, which lanes of a warp would do if the winner left the loop with the lock.
// A step is a try for the lock, at most `tries`. The lock is given back within a round, so a lane waits for as many rounds
// as there are lanes before it; a warp that is away while it has the lock costs the others some tries more.
//
// A lane that gives, and whose page is none or is not gotten rid of in time, keeps it and is counted in `faults`.
.param control u64
.param next u64
.param given u64
.param steps u64
.param faults u64
.param gives u32
.param pages u32
.param lanes u32
.param tries u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%lanes]
$p0 exit
mov b32 $r1 c0[%gives]
set $p3 0x1 ne u32 $r1 0x0
mov b32 $r6 0x0
mov b32 $r7 0xffffffff
element $r4 $r5 $r0 %given
$p3 ld b32 $r7 cg g[$r4d]
set $p0 0x1 eq u32 $r7 0xffffffff and $p3
$p0 exit
mov b32 $r12 c0[%control]
mov b32 $r13 c0[%control+4]
mov b32 $r10 0x0
mov b32 $r11 0x1
mov b32 $r15 0xffffffff
// $p2: a giver's page is one of the pool's. Takers have none yet.
set $p2 0x1 lt u32 $r7 c0[%pages] or not $p3
prebrk #done
(not $p2) brk
try:
set $p0 0x1 ge u32 $r6 c0[%tries]
$p0 brk
add b32 $r6 $r6 0x1
cas b32 $r9 g[$r12d] $r10 $r11
set $p1 0x1 eq u32 $r9 0x0
// Under the lock, from here to where it is unlocked. $r8 is the first page.
$p1 ld b32 $r8 cg g[$r12d+0x4]
set $p4 0x1 $p1 and $p3
set $p5 0x1 ne u32 $r8 0xffffffff and $p1
set $p5 0x1 $p5 and not $p3
selp b32 $r14 $r7 $r8 $p3
element $r2 $r3 $r14 %next
// A giver's page links to the first one and becomes it.
$p4 st b32 cg g[$r2d] $r8
// A taker's is the first one, and the one behind it becomes that.
$p5 ld b32 $r9 cg g[$r2d]
selp b32 $r14 $r7 $r9 $p3
set $p5 0x1 $p4 or $p5
$p5 st b32 cg g[$r12d+0x4] $r14
selp b32 $r14 $r15 $r8 $p3
$p1 mov b32 $r7 $r14
membar gl
$p1 exch b32 $r9 g[$r12d] $r10
$p1 brk
bra #try
done:
st b32 wb g[$r4d] $r7
element $r4 $r5 $r0 %steps
st b32 wb g[$r4d] $r6
mov b32 $r2 c0[%faults]
mov b32 $r3 c0[%faults+4]
mov b32 $r11 0x1
set $p0 0x1 ne u32 $r7 0xffffffff and $p3
$p0 red add u32 g[$r2d] $r11
exit

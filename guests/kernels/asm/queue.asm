// Takes from queues of free pieces or gives back to them: the baseline of the random walks. A queue is a ring of `slots`
// words (a power of two); an empty slot is all ones. Its four words in `control` count: takers and givers that came,
// pieces that are there, slots that are free.
//
// A lane first takes one from the last or the last but one of these counts, so it never waits for what may not come. Then
// it goes to the next slot and waits for the lane that still has to empty or fill it: at most `tries` looks. That lane is
// of another launch or at least of another warp, because a launch only takes or only gives.
//
// A step is a turn at the queue: a lane's steps are how many came since `before`, with itself. A lane that got nothing has
// none. A giver's piece that there is no room for stays with it and is counted in `faults`.
//
// Without `sizes` all lanes want one piece of queue 0. With it, queue q has pieces of 2^(unit_shift + q) bytes, and lane i
// wants one of sizes[i] bytes; sizes of 0, or beyond those of queue `queues` - 1, get none.
.param control u64
.param ring u64
.param given u64
.param steps u64
.param sizes u64
.param faults u64
.param gives u32
.param slots u32
.param queues u32
.param unit_shift u32
.param before u32
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
// $r8: the queue. A size of 0 becomes the largest number, which has no queue.
mov b32 $r8 0x0
mov b32 $r2 c0[%sizes]
or b32 $r2 $r2 c0[%sizes+4]
set $p1 0x1 ne u32 $r2 0x0
element $r2 $r3 $r0 %sizes
$p1 ld b32 $r9 cg g[$r2d]
$p1 sub b32 $r9 $r9 0x1
mov b32 $r10 c0[%unit_shift]
$p1 shr u32 $r9 $r9 clamp $r10
$p1 bfind u32 $r8 $r9
$p1 add b32 $r8 $r8 0x1
set $p0 0x1 lt u32 $r8 c0[%queues]
// $r2d: the taker's or the giver's count of its queue; what it takes from is at $r2d+8, what it adds to at $r12d.
mov b32 $r9 0x10
add $r12 $c (mul u32 $r8 u32 $r9) c0[%control]
add $r13 (mul high u32 $r8 u32 $r9) c0[%control+4] $c
mov b32 $r14 0x4
selp b32 $r9 $r14 0x0 $p3
add b32 $r2 $c $r12 $r9
add b32 $r3 $r13 0x0 $c
mov b32 $r14 0x8
selp b32 $r9 $r14 0xc $p3
add b32 $r12 $c $r12 $r9
add b32 $r13 $r13 0x0 $c
mov b32 $r10 0xffffffff
mov b32 $r14 0x1
$p0 ld add u32 $r9 g[$r2d+0x8] $r10
set $p1 0x1 gt s32 $r9 0x0 and $p0
set $p2 0x1 le s32 $r9 0x0 and $p0
// There was none: the count gets back what was taken from it in vain.
$p2 red add u32 g[$r2d+0x8] $r14
$p1 ld add u32 $r9 g[$r2d] $r14
$p1 sub b32 $r6 $r9 c0[%before]
$p1 add b32 $r6 $r6 0x1
mov b32 $r14 c0[%slots]
sub b32 $r15 $r14 0x1
and b32 $r9 $r9 $r15
add $r9 (mul u32 $r8 u32 $r14) $r9
element $r2 $r3 $r9 %ring
mov b32 $r11 $r7
mov b32 $r15 0x0
prebrk #waited
(not $p1) brk
wait:
$p3 cas b32 $r9 g[$r2d] $r10 $r11
(not $p3) exch b32 $r9 g[$r2d] $r10
// A giver waits for an empty slot, a taker for one that is not.
set $p0 0x1 eq u32 $r9 0xffffffff xor not $p3
$p0 brk
add b32 $r15 $r15 0x1
set $p0 0x1 ge u32 $r15 c0[%tries]
$p0 brk
bra #wait
waited:
set $p0 0x1 eq u32 $r9 0xffffffff xor not $p3
set $p0 0x1 $p0 and $p1
mov b32 $r11 0x1
$p0 red add u32 g[$r12d] $r11
$p0 selp b32 $r7 $r10 $r9 $p3
st b32 wb g[$r4d] $r7
element $r4 $r5 $r0 %steps
st b32 wb g[$r4d] $r6
mov b32 $r2 c0[%faults]
mov b32 $r3 c0[%faults+4]
set $p0 0x1 ne u32 $r7 0xffffffff and $p3
$p0 red add u32 g[$r2d] $r11
exit

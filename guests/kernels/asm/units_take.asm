// RW_malloc: runs of units (2^unit_shift bytes each) by a random walk. Lane i wants sizes[i] bytes, 1 to 32 units' worth,
// and gets the offset of its first byte in the pool, or all ones; a size of 0 or beyond gets all ones at once.
//
// 1. Small requests, of half a unit or less, of a warp are put together: each is rounded up to 1/2, 1/4, 1/8 or 1/16 of a
//    unit, the larger ones lie in front. So no piece crosses from unit to unit. The lowest such lane asks for all of them.
// 2. A step: the warp draws a place and looks at 32 words of the bitmap, a word a lane. A lane takes all free units of its
//    word by one atomic, so nobody else takes them meanwhile.
// 3. The requests that are left are served one after the other, by all lanes together: each looks for a run that begins in
//    its word and may end in the next one's, and the last of all runs found is taken.
// 4. What is left of the words goes back.
//
// Small requests for which there is no run together ask for a unit each at the end.
//
// After `tries` steps the warp goes on in order, `sweeps` steps of 31 words each from a place that it draws: every pair of
// neighbours is seen once, so a request that is still not served had no run at the time its words were looked at (units
// that another warp holds for a moment count as taken).
//
// A unit's tag says what begins there: 256 * units + pieces; 0 within a run and in free units. Blocks have 256 threads.
.shared 2304
.param bitmap u64
.param tags u64
.param sizes u64
.param given u64
.param steps u64
.param words u32
.param sweeps u32
.param unit_shift u32
.param lanes u32
.param seed u32
.param tries u32

thread_x $r0 $r1
mov b32 $r1 $laneid
mov b32 $r30 $lanemask_lt
// $r31: 288 bytes of shared memory for each warp: the lanes' requests, their words and a 0, and what was found.
mov b32 $r2 $tidx
shr u32 $r2 $r2 clamp 0x5
mul $r31 u32 $r2 u32 0x120
shr u32 $r2 $r0 clamp 0x5
random_start $r4 $r2 %seed $r8 $r9
set $p0 0x1 lt u32 $r0 c0[%lanes]
element $r2 $r3 $r0 %sizes
mov b32 $r5 0x0
$p0 ld b32 $r5 cg g[$r2d]

// $r6: units that this lane asks for. A size of 0 becomes the largest number, and so is too large.
mov b32 $r9 c0[%unit_shift]
sub b32 $r6 $r5 0x1
shr u32 $r6 $r6 clamp $r9
add b32 $r6 $r6 0x1
set $p0 0x1 le u32 $r6 0x20
set $p6 0x1 ne u32 $r5 0x0 and $p0
(not $p6) mov b32 $r6 0x0
// $p6: a request that can be met. $p5: a small one.
mov b32 $r10 0x1
shl b32 $r10 $r10 clamp $r9
shr u32 $r11 $r10 clamp 0x1
set $p5 0x1 le u32 $r5 $r11 and $p6
// $r7: offset of a small request from the first of all; $r8: bytes of all so far; $r11: bytes of this kind.
mov b32 $r7 0x0
mov b32 $r8 0x0
mov b32 $r15 0x4
set $p2 0x1 $p5 and 0x1
kind:
shr u32 $r12 $r11 clamp 0x1
// $p3: of this kind: too large for the next one, or this is the last.
set $p3 0x1 gt u32 $r5 $r12
set $p4 0x1 eq u32 $r15 0x1
set $p3 0x1 $p3 or $p4 and $p2
vote any $r13 0x1 $p3
and b32 $r14 $r13 $r30
popc $r14 $r14 $r14
$p3 add $r7 (mul u32 $r14 u32 $r11) $r8
popc $r14 $r13 $r13
add $r8 (mul u32 $r14 u32 $r11) $r8
set $p2 0x1 $p2 and not $p3
mov b32 $r11 $r12
sub b32 $r15 $r15 0x1
set $p3 0x1 ne u32 $r15 0x0
$p3 bra #kind
// The lowest small one asks for the units of all, the others for none.
vote any $r13 0x1 $p5
and b32 $r13 $r13 $r30
set $p4 0x1 eq u32 $r13 0x0 and $p5
add b32 $r8 $r8 $r10
sub b32 $r8 $r8 0x1
mov b32 $r9 c0[%unit_shift]
shr u32 $r8 $r8 clamp $r9
$p5 mov b32 $r6 0x0
$p4 mov b32 $r6 $r8

// $r29: this lane's place in shared memory. Words are there from 0 on, with a 0 behind the last, requests from 0x84 on;
// 0x104 is the run that was found, 0x108 the small ones' together.
add b32 $r29 (shl $r1 0x2) $r31
mov b32 $r9 0x0
st b32 s[$r31+0x80] $r9
// $r16: first unit. $r17: steps. $r18: their end, and $r27: those of them that draw.
mov b32 $r16 0xffffffff
mov b32 $r17 0x0
mov b32 $r27 c0[%tries]
add b32 $r18 $r27 c0[%sweeps]
mov b32 $r28 0xffffffff
mov b32 $r26 c0[%sweeps]
random $r19 $r4 $r9
mul high $r19 u32 $r19 u32 $r26

ask:
st b32 s[$r29+0x84] $r6
step:
// $r20: lanes whose request is left.
set $p1 0x1 ne u32 $r6 0x0
set $p1 0x1 eq u32 $r16 0xffffffff and $p1
vote any $r20 $p2 $p1
(not $p2) bra #served
set $p2 0x1 ge u32 $r17 $r18
$p2 bra #served
// $r8: this lane's word. Those before the first and behind the last are none, so all words are seen equally often.
random $r8 $r4 $r9
mov b32 $r9 c0[%words]
add b32 $r10 $r9 0x1f
mul high $r8 u32 $r8 u32 $r10
add b32 $r8 $r8 0xffffffe1
sub b32 $r11 $r17 $r27
add b32 $r11 $r11 $r19
set $p2 0x1 ge u32 $r11 $r26
$p2 sub b32 $r11 $r11 $r26
mul $r11 u32 $r11 u32 0x1f
set $p2 0x1 ge u32 $r17 $r27
$p2 mov b32 $r8 $r11
add b32 $r17 $r17 0x1
add b32 $r8 $r8 $r1
set $p2 0x1 lt u32 $r8 $r9
element $r2 $r3 $r8 %bitmap
mov b32 $r9 $r28
$p2 ld b32 $r9 cg g[$r2d]
set $p2 0x1 ne u32 $r9 0xffffffff
// $r9: free units of the word, which now are this lane's.
$p2 ld or u32 $r9 g[$r2d] $r28
xor b32 $r9 $r9 0xffffffff

serve:
// $r10: the lowest lane that is left, as a bit; $r25: its number; $r11: the units that it wants.
xor b32 $r10 $r20 0xffffffff
add b32 $r10 $r10 0x1
and b32 $r10 $r10 $r20
xor b32 $r20 $r20 $r10
bfind u32 $r25 $r10
add b32 $r11 (shl $r25 0x2) $r31
ld b32 $r11 s[$r11+0x84]
st b32 s[$r29] $r9
ld b32 $r14 s[$r29+0x4]
// Bits of $r13, and of the next word $r14 behind it, at which $r21 free units begin.
mov b32 $r13 $r9
mov b32 $r21 0x1
grow:
set $p2 0x1 ge u32 $r21 $r11
$p2 bra #grown
sub b32 $r22 $r11 $r21
min u32 $r22 $r22 $r21
mov b32 $r23 0x20
sub b32 $r23 $r23 $r22
shl b32 $r23 $r14 clamp $r23
shr u32 $r24 $r13 clamp $r22
or b32 $r24 $r24 $r23
and b32 $r13 $r13 $r24
shr u32 $r24 $r14 clamp $r22
and b32 $r14 $r14 $r24
add b32 $r21 $r21 $r22
bra #grow
grown:
set $p2 0x1 ne u32 $r13 0x0
vote any $r14 $p3 $p2
(not $p3) bra #next
// The last lane with a run says where it begins.
bfind u32 $r14 $r14
set $p2 0x1 eq u32 $r1 $r14
bfind u32 $r13 $r13
add b32 $r13 (shl $r8 0x5) $r13
$p2 st b32 s[$r31+0x104] $r13
ld b32 $r13 s[$r31+0x104]
// It and the lane behind it have these units no longer.
mov b32 $r21 0x20
sub b32 $r22 $r21 $r11
shr u32 $r22 $r28 clamp $r22
and b32 $r23 $r13 0x1f
shl b32 $r24 $r22 clamp $r23
$p2 xor b32 $r9 $r9 $r24
add b32 $r14 $r14 0x1
set $p2 0x1 eq u32 $r1 $r14
sub b32 $r23 $r21 $r23
shr u32 $r24 $r22 clamp $r23
$p2 xor b32 $r9 $r9 $r24
set $p2 0x1 eq u32 $r1 $r25
$p2 mov b32 $r16 $r13
next:
set $p2 0x1 ne u32 $r20 0x0
$p2 bra #serve
set $p2 0x1 ne u32 $r9 0x0
xor b32 $r9 $r9 0xffffffff
$p2 red and u32 g[$r2d] $r9
bra #step

served:
// The small ones learn where theirs are.
$p4 st b32 s[$r31+0x108] $r16
$p5 ld b32 $r16 s[$r31+0x108]
set $p2 0x1 eq u32 $r16 0xffffffff and $p5
vote any 0x0 $p3 $p2
(not $p3) bra #tags
// There was no run for all of them: each is a request for one unit from now on, in order.
$p2 mov b32 $r6 0x1
$p2 mov b32 $r7 0x0
set $p4 0x1 $p4 and not $p2
set $p5 0x1 $p5 and not $p2
mov b32 $r27 $r17
add b32 $r18 $r17 $r26
bra #ask

tags:
mov b32 $r9 c0[%unit_shift]
shl b32 $r10 $r16 clamp $r9
add b32 $r10 $r10 $r7
shr u32 $r11 $r10 clamp $r9
element $r2 $r3 $r11 %tags
set $p1 0x1 ne u32 $r16 0xffffffff
(not $p1) mov b32 $r10 $r28
set $p2 0x1 $p1 and $p5
set $p3 0x1 $p1 and not $p5
// A run of its own: one piece. Not in units of small ones, whose tags count up.
mov b32 $r12 0x1
add b32 $r13 (shl $r6 0x8) $r12
$p3 st b32 wb g[$r2d] $r13
shl b32 $r13 $r11 clamp $r9
set $p4 0x1 eq u32 $r13 $r10
add b32 $r13 $r12 0x100
selp b32 $r13 $r13 0x1 $p4
$p2 red add u32 g[$r2d] $r13
set $p0 0x1 ge u32 $r0 c0[%lanes]
$p0 exit
(not $p6) mov b32 $r17 0x0
element $r2 $r3 $r0 %given
st b32 wb g[$r2d] $r10
element $r2 $r3 $r0 %steps
st b32 wb g[$r2d] $r17
exit

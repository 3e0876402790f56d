// CoRW: the lanes of a warp draw words together, and share what they find. Fermi has no shuffle, so pages pass from lane
// to lane through shared memory; votes say who has some and who needs one. The word is its own lock: a lane takes all
// free pages of its word by one atomic, and gives back at the end of the step what nobody needed. Lanes of a warp execute
// together, so nothing but their order stands between a store to shared memory and the loads behind it.
//
// A step is a draw by all lanes, at most `tries` of them. All lanes take part until the last one has a page, so all have
// the warp's steps. Blocks have 256 threads.
.shared 1024
.param bitmap u64
.param given u64
.param steps u64
.param words u32
.param lanes u32
.param seed u32
.param tries u32

thread_x $r0 $r1
random_start $r4 $r0 %seed $r8 $r9
mov b32 $r5 c0[%words]
mov b32 $r6 0x0
mov b32 $r7 0xffffffff
// Lanes behind the last one need nothing, and help.
set $p0 0x1 lt u32 $r0 c0[%lanes]
mov b32 $r15 $lanemask_lt
// A place for each lane of each warp in shared memory.
mov b32 $r14 $tidx
and b32 $r14 $r14 0xffffffe0
shl b32 $r14 $r14 clamp 0x2
try:
vote any $r10 0x1 $p0
set $p1 0x1 eq u32 $r10 0x0
$p1 bra #done
set $p1 0x1 ge u32 $r6 c0[%tries]
$p1 bra #done
add b32 $r6 $r6 0x1
random $r8 $r4 $r9
mul high $r8 u32 $r8 u32 $r5
element $r2 $r3 $r8 %bitmap
ld b32 $r9 cg g[$r2d]
// $r9: the pages that this lane holds, as bits.
set $p2 0x1 ne u32 $r9 0xffffffff
mov b32 $r11 0xffffffff
$p2 ld or u32 $r9 g[$r2d] $r11
xor b32 $r9 $r9 0xffffffff
share:
set $p2 0x1 ne u32 $r9 0x0
vote any $r11 $p1 $p2
(not $p1) bra #try
vote any $r10 $p1 $p0
(not $p1) bra #rest
// Among those that have pages, this lane comes behind $r12 others; its page goes to place $r12, if anybody waits there.
and b32 $r12 $r11 $r15
popc $r12 $r12 $r12
popc $r13 $r10 $r10
set $p1 0x1 lt u32 $r12 $r13 and $p2
bfind u32 $r13 $r9
add b32 $r12 (shl $r12 0x2) $r14
$p1 add b32 $r16 (shl $r8 0x5) $r13
$p1 st b32 s[$r12] $r16
mov b32 $r16 0x1
shl b32 $r16 $r16 clamp $r13
$p1 xor b32 $r9 $r9 $r16
// The lane with as many waiting before it as the place has takes the page.
and b32 $r12 $r10 $r15
popc $r12 $r12 $r12
popc $r13 $r11 $r11
set $p1 0x1 lt u32 $r12 $r13 and $p0
add b32 $r12 (shl $r12 0x2) $r14
$p1 ld b32 $r7 s[$r12]
set $p0 0x1 eq u32 $r7 0xffffffff and $p0
bra #share
rest:
xor b32 $r9 $r9 0xffffffff
$p2 red and u32 g[$r2d] $r9
done:
set $p0 0x1 ge u32 $r0 c0[%lanes]
$p0 exit
element $r2 $r3 $r0 %given
st b32 wb g[$r2d] $r7
element $r2 $r3 $r0 %steps
st b32 wb g[$r2d] $r6
exit

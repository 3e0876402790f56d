// Gives runs of units back by the offset of a piece in the pool, and forgets them. The last piece of a unit's tag frees
// what begins there: a run, or a unit of small pieces. What is no piece changes nothing and is counted; that the tags
// tell the start of a run apart from what is within it finds most such mistakes, not which piece of a unit it was.
//
// Lanes that change one tag at a time try again together, and each round one of them is through: pieces of a unit are 16
// at most, so a lane needs at most as many rounds, or finds the tag 0.
.param bitmap u64
.param tags u64
.param given u64
.param faults u64
.param words u32
.param unit_shift u32
.param lanes u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%lanes]
$p0 exit
element $r4 $r5 $r0 %given
ld b32 $r6 cg g[$r4d]
set $p0 0x1 eq u32 $r6 0xffffffff
$p0 exit
mov b32 $r9 c0[%unit_shift]
shr u32 $r6 $r6 clamp $r9
shr u32 $r7 $r6 clamp 0x5
set $p0 0x1 lt u32 $r7 c0[%words]
// $r8: the tag's start; $r10 and $r11: what the tag is and what it is to be.
element $r2 $r3 $r6 %tags
mov b32 $r8 0x0
mov b32 $r10 0x0
mov b32 $r16 0x10
$p0 ld b32 $r10 cg g[$r2d]
prebrk #changed
change:
and b32 $r12 $r10 0xff
set $p0 0x1 eq u32 $r12 0x0
$p0 brk
set $p0 0x1 eq u32 $r16 0x0
$p0 brk
sub b32 $r16 $r16 0x1
sub b32 $r11 $r10 0x1
set $p1 0x1 eq u32 $r12 0x1
$p1 mov b32 $r11 0x0
cas b32 $r12 g[$r2d] $r10 $r11
set $p0 0x1 eq u32 $r12 $r10
$p0 mov b32 $r8 $r10
$p0 brk
mov b32 $r10 $r12
bra #change
changed:
// $r8: the tag that this lane took a piece from, or 0.
mov b32 $r13 0xffffffff
set $p0 0x1 ne u32 $r8 0x0
$p0 st b32 wb g[$r4d] $r13
mov b32 $r2 c0[%faults]
mov b32 $r3 c0[%faults+4]
mov b32 $r12 0x1
(not $p0) red add u32 g[$r2d] $r12
(not $p0) exit
and b32 $r12 $r8 0xff
set $p0 0x1 ne u32 $r12 0x1
$p0 exit
// It was the last one. The run's bits are those of $r11 from bit $r12 on, in one word or two.
shr u32 $r8 $r8 clamp 0x8
mov b32 $r14 0x20
sub b32 $r11 $r14 $r8
shr u32 $r11 $r13 clamp $r11
and b32 $r12 $r6 0x1f
shl b32 $r15 $r11 clamp $r12
xor b32 $r15 $r15 0xffffffff
element $r2 $r3 $r7 %bitmap
red and u32 g[$r2d] $r15
sub b32 $r14 $r14 $r12
shr u32 $r15 $r11 clamp $r14
set $p0 0x1 ne u32 $r15 0x0
xor b32 $r15 $r15 0xffffffff
$p0 red and u32 g[$r2d+0x4] $r15
exit

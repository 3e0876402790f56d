// RW-BM: each lane draws a word of 32 pages until it finds one with a free page, and sets that page's bit. A step is a
// word that was drawn, at most `tries`. Several lanes may want the same page of a word: those that come too late take
// another of the word, or draw again once it has none. A word that is in hand only loses pages in the lane's eyes, so
// that loop ends after 32 rounds.
.param bitmap u64
.param given u64
.param steps u64
.param words u32
.param lanes u32
.param seed u32
.param tries u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%lanes]
$p0 exit
random_start $r4 $r0 %seed $r8 $r9
mov b32 $r5 c0[%words]
mov b32 $r6 0x0
mov b32 $r7 0xffffffff
prebrk #done
try:
set $p0 0x1 ge u32 $r6 c0[%tries]
$p0 brk
add b32 $r6 $r6 0x1
random $r8 $r4 $r9
mul high $r8 u32 $r8 u32 $r5
element $r2 $r3 $r8 %bitmap
ld b32 $r9 cg g[$r2d]
prebrk #looked
claim:
set $p1 0x1 eq u32 $r9 0xffffffff
$p1 brk
bfind u32 $r10 not $r9
mov b32 $r11 0x1
shl b32 $r11 $r11 clamp $r10
ld or u32 $r12 g[$r2d] $r11
or b32 $r9 $r9 $r12
and b32 $r12 $r12 $r11
set $p1 0x1 eq u32 $r12 0x0
$p1 add b32 $r7 (shl $r8 0x5) $r10
$p1 brk
bra #claim
looked:
set $p0 0x1 ne u32 $r7 0xffffffff
$p0 brk
bra #try
done:
element $r2 $r3 $r0 %given
st b32 wb g[$r2d] $r7
element $r2 $r3 $r0 %steps
st b32 wb g[$r2d] $r6
exit

// Each row of the probe side goes through the chain of its key: first to say how many bytes its result needs, two words
// for each row of the build side with the key, then, with `writes`, to store them where it was given that many. A row that
// was given nothing stores nothing.
.param probes u64
.param keys u64
.param heads u64
.param following u64
.param sizes u64
.param given u64
.param rows_out u64
.param probe_rows u32
.param rows u32
.param writes u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%probe_rows]
$p0 exit
element $r2 $r3 $r0 %probes
ld b32 $r4 cs g[$r2d]
mov b32 $r5 c0[%rows]
mul $r6 u32 $r4 u32 0x9e3779b1
mul high $r6 u32 $r6 u32 $r5
element $r2 $r3 $r6 %heads
ld b32 $r6 ca g[$r2d]
mov b32 $r7 c0[%writes]
set $p3 0x1 ne u32 $r7 0x0
element $r2 $r3 $r0 %given
mov b32 $r9 0xffffffff
$p3 ld b32 $r9 ca g[$r2d]
set $p2 0x1 ne u32 $r9 0xffffffff
mov b32 $r8 0x0
prebrk #done
row:
set $p0 0x1 eq u32 $r6 0xffffffff
$p0 brk
element $r2 $r3 $r6 %keys
ld b32 $r7 ca g[$r2d]
set $p1 0x1 eq u32 $r7 $r4
add b32 $r7 $r9 $r8
$p1 add b32 $r8 $r8 0x8
set $p1 0x1 $p1 and $p2
element_of 0x1 $r2 $r3 $r7 %rows_out
$p1 st b32 wb g[$r2d] $r0
$p1 st b32 wb g[$r2d+0x4] $r6
element $r2 $r3 $r6 %following
ld b32 $r6 ca g[$r2d]
bra #row
done:
element $r2 $r3 $r0 %sizes
(not $p3) st b32 wb g[$r2d] $r8
exit

// Each row of the probe side reads its result back: how many of its rows name it, and the sum of the values of those.
// A row that should have some and was given nothing has all ones.
.param sizes u64
.param given u64
.param rows_out u64
.param values u64
.param matches u64
.param sums u64
.param probe_rows u32

thread_x $r0 $r1
set $p0 0x1 ge u32 $r0 c0[%probe_rows]
$p0 exit
element $r2 $r3 $r0 %sizes
ld b32 $r4 ca g[$r2d]
element $r2 $r3 $r0 %given
ld b32 $r5 ca g[$r2d]
mov b32 $r8 0x0
mov b32 $r9 0x0
set $p0 0x1 eq u32 $r5 0xffffffff
set $p1 0x1 ne u32 $r4 0x0 and $p0
$p1 mov b32 $r8 0xffffffff
$p0 mov b32 $r4 0x0
add b32 $r4 $r4 $r5
prebrk #done
row:
set $p0 0x1 eq u32 $r5 $r4
$p0 brk
element_of 0x1 $r2 $r3 $r5 %rows_out
ld b32 $r6 ca g[$r2d]
ld b32 $r7 ca g[$r2d+0x4]
set $p1 0x1 eq u32 $r6 $r0
element $r2 $r3 $r7 %values
$p1 ld b32 $r6 ca g[$r2d]
$p1 add b32 $r8 $r8 0x1
$p1 add b32 $r9 $r9 $r6
add b32 $r5 $r5 0x8
bra #row
done:
element $r2 $r3 $r0 %matches
st b32 wb g[$r2d] $r8
element $r2 $r3 $r0 %sums
st b32 wb g[$r2d] $r9
exit

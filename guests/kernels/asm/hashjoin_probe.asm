// Each row of the probe side counts the rows of the build side with its key and adds up their values. The order of a
// chain is that in which its rows came; neither result depends on it.
.param probes u64
.param keys u64
.param values u64
.param heads u64
.param following u64
.param matches u64
.param sums u64
.param probe_rows u32
.param rows u32

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
mov b32 $r8 0x0
mov b32 $r9 0x0
prebrk #done
row:
set $p0 0x1 eq u32 $r6 0xffffffff
$p0 brk
element $r2 $r3 $r6 %keys
ld b32 $r7 ca g[$r2d]
set $p1 0x1 eq u32 $r7 $r4
element $r2 $r3 $r6 %values
$p1 ld b32 $r7 ca g[$r2d]
$p1 add b32 $r8 $r8 0x1
$p1 add b32 $r9 $r9 $r7
element $r2 $r3 $r6 %following
ld b32 $r6 ca g[$r2d]
bra #row
done:
element $r2 $r3 $r0 %matches
st b32 wb g[$r2d] $r8
element $r2 $r3 $r0 %sums
st b32 wb g[$r2d] $r9
exit

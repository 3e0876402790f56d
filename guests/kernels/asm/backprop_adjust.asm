// changes = rate * error * input + momentum * previous, updated = weights + changes. Blocks of 16 hidden units x 16
// inputs.
.param inputs u64
.param weights u64
.param previous u64
.param errors u64
.param changes u64
.param updated u64
.param rows u32
.param rate f32
.param momentum f32

thread_x $r0 $r2
thread_y $r1 $r2
set $p0 0x1 ge u32 $r1 c0[%rows]
$p0 exit
add b32 $r3 (shl $r1 0x4) $r0
element $r4 $r5 $r1 %inputs
ld b32 $r8 ca g[$r4d]
element $r4 $r5 $r0 %errors
ld b32 $r9 ca g[$r4d]
element $r4 $r5 $r3 %weights
ld b32 $r10 ca g[$r4d]
element $r4 $r5 $r3 %previous
ld b32 $r11 ca g[$r4d]
mul rn f32 $r9 $r9 c0[%rate]
mul rn f32 $r11 $r11 c0[%momentum]
fma rn f32 $r11 $r9 $r8 $r11
add rn f32 $r10 $r10 $r11
element $r4 $r5 $r3 %changes
st b32 wb g[$r4d] $r11
element $r4 $r5 $r3 %updated
st b32 wb g[$r4d] $r10
exit

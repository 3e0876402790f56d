// Factorises the 16 x 16 tile at word `corner` of each matrix, from -> to: unit lower factor below the diagonal, upper
// factor above. One block of 16 threads a matrix, one row a thread.
.param from u64
.param to u64
.param side u32
.param corner u32
.shared 1024

mov b32 $r0 $tidx
mov b32 $r1 $ctaidy
add b32 $r1 $r1 c0[0x1c]
mov b32 $r2 c0[%side]
// The row's first word.
mul $r3 u32 $r2 u32 $r2
mov b32 $r4 c0[%corner]
add $r3 (mul u32 $r1 u32 $r3) $r4
add $r3 (mul u32 $r0 u32 $r2) $r3
element $r4 $r5 $r3 %from
element $r6 $r7 $r3 %to
shl b32 $r8 $r0 clamp 0x6
ld b128 $r12q ca g[$r4d]
ld b128 $r16q ca g[$r4d+0x10]
ld b128 $r20q ca g[$r4d+0x20]
ld b128 $r24q ca g[$r4d+0x30]
st b128 s[$r8] $r12q
st b128 s[$r8+0x10] $r16q
st b128 s[$r8+0x20] $r20q
st b128 s[$r8+0x30] $r24q
barrier
// $r9 = the pivot's place, $r10 = that of the factor in this row.
mov b32 $r2 0x0
mov b32 $r9 0x0
mov b32 $r10 $r8
pivot:
// Rows up to the pivot's are finished; what their threads compute is not stored.
set $p1 0x1 gt u32 $r0 $r2
ld b32 $r12 s[$r9]
ld b32 $r13 s[$r10]
divide $r14 $r13 $r12 $r15 $r16
$p1 st b32 s[$r10] $r14
add b32 $r2 $r2 0x1
mov b32 $r3 $r2
mov b32 $r4 $r9
mov b32 $r5 $r10
column:
ld b32 $r12 s[$r4+0x4]
ld b32 $r13 s[$r5+0x4]
fma rn f32 $r13 neg $r14 $r12 $r13
$p1 st b32 s[$r5+0x4] $r13
add b32 $r4 $r4 0x4
add b32 $r5 $r5 0x4
add b32 $r3 $r3 0x1
set $p0 0x1 lt u32 $r3 0x10
$p0 bra #column
barrier
add b32 $r9 $r9 0x44
add b32 $r10 $r10 0x4
set $p0 0x1 lt u32 $r2 0xf
$p0 bra #pivot
ld b128 $r12q s[$r8]
ld b128 $r16q s[$r8+0x10]
ld b128 $r20q s[$r8+0x20]
ld b128 $r24q s[$r8+0x30]
st b128 wb g[$r6d] $r12q
st b128 wb g[$r6d+0x10] $r16q
st b128 wb g[$r6d+0x20] $r20q
st b128 wb g[$r6d+0x30] $r24q
exit

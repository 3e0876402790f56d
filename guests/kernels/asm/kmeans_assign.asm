// Each point becomes a member of the nearest centre and is added to its sums; of several centres, of the first. Points
// are stored feature by feature, 16 features each. %changed counts points whose cluster was another; all if %fresh.
// Shared: the centres.
.param points u64
.param centres u64
.param members u64
.param sums u64
.param counts u64
.param changed u64
.param n u32
.param words u32
.param clusters u32
.param fresh u32
.shared 1024

// The next feature to %x.
.macro feature x
    ld b32 %x ca g[$r2d]
    add b32 $r2 $c $r2 $r4
    add b32 $r3 $r3 0x0 $c
.endm

// $r6 += (%x - %c)^2
.macro term x c
    add rn f32 $r7 %x neg %c
    fma rn f32 $r6 $r7 $r7 $r6
.endm

.macro terms offset a b c d
    ld b128 $r8q s[$r5+%offset]
    term %a $r8
    term %b $r9
    term %c $r10
    term %d $r11
.endm

// Features are whole numbers.
.macro sum offset x
    cvt rzi u32 $r7 f32 %x
    red add u32 g[$r2d+%offset] $r7
.endm

thread_x $r0 $r1
set $p0 0x1 lt u32 $r1 c0[%words]
element $r2 $r3 $r1 %centres
shl b32 $r5 $r1 clamp 0x2
$p0 ld b32 $r6 ca g[$r2d]
$p0 st b32 s[$r5] $r6
barrier
set $p0 0x1 ge u32 $r0 c0[%n]
$p0 exit
element $r2 $r3 $r0 %points
mov b32 $r4 c0[%n]
shl b32 $r4 $r4 clamp 0x2
feature $r16
feature $r17
feature $r18
feature $r19
feature $r20
feature $r21
feature $r22
feature $r23
feature $r24
feature $r25
feature $r26
feature $r27
feature $r28
feature $r29
feature $r30
feature $r31
// $r12, $r13 = least square of a distance and whose it is.
mov b32 $r12 0x7f800000
mov b32 $r13 0x0
mov b32 $r14 0x0
mov b32 $r5 0x0
cluster:
mov b32 $r6 0x0
terms 0x0 $r16 $r17 $r18 $r19
terms 0x10 $r20 $r21 $r22 $r23
terms 0x20 $r24 $r25 $r26 $r27
terms 0x30 $r28 $r29 $r30 $r31
set $p0 0x1 lt f32 $r6 $r12
$p0 mov b32 $r12 $r6
$p0 mov b32 $r13 $r14
add b32 $r5 $r5 0x40
add b32 $r14 $r14 0x1
set $p0 0x1 lt u32 $r14 c0[%clusters]
$p0 bra #cluster
element $r2 $r3 $r0 %members
ld b32 $r6 ca g[$r2d]
st b32 wb g[$r2d] $r13
mov b32 $r7 c0[%fresh]
set $p1 0x1 ne u32 $r7 0x0
set $p1 0x1 ne u32 $r6 $r13 or $p1
// The first lane that changed counts all of its warp.
vote any $r6 0x1 $p1
mov b32 $r7 $lanemask_lt
and b32 $r7 $r7 $r6
set $p1 0x1 eq u32 $r7 0x0 and $p1
popc $r6 $r6 $r6
mov b32 $r2 c0[%changed]
mov b32 $r3 c0[%changed+4]
$p1 red add u32 g[$r2d] $r6
mov b32 $r6 0x1
element $r2 $r3 $r13 %counts
red add u32 g[$r2d] $r6
element_of 0x40 $r2 $r3 $r13 %sums
sum 0x0 $r16
sum 0x4 $r17
sum 0x8 $r18
sum 0xc $r19
sum 0x10 $r20
sum 0x14 $r21
sum 0x18 $r22
sum 0x1c $r23
sum 0x20 $r24
sum 0x24 $r25
sum 0x28 $r26
sum 0x2c $r27
sum 0x30 $r28
sum 0x34 $r29
sum 0x38 $r30
sum 0x3c $r31
exit

// A later frame: each point goes where the frame is most like its template, at most 8 pixels away, and the template
// becomes a little like what is there. A block of 256 threads a point, one a displacement (x, y) from (-8, -8) to (7, 7).
// A score is the covariance of template and window by the window's deviation.
// Shared: s[0x0000..0x03ff] the template, s[0x0400..0x13ff] the 32 x 32 pixels around the point, s[0x1400..0x17ff] scores,
// s[0x1800..0x1bff] whose they are.
.param frame u64
.param templates u64
.param track u64
.param side u32
.param frames u32
.param number u32
.param keep f32
.shared 7168

// One pixel: sums of $r16 the window, $r17 its squares, $r18 template * window, $r19 the template.
.macro pixel offset value
    ld b32 $r28 s[$r9+%offset]
    add rn f32 $r16 $r16 $r28
    fma rn f32 $r17 $r28 $r28 $r17
    fma rn f32 $r18 %value $r28 $r18
    add rn f32 $r19 $r19 %value
.endm

mov b32 $r0 $tidx
mov b32 $r1 $ctaidx
add b32 $r1 $r1 c0[0x18]
mov b32 $r2 c0[%number]
add $r2 (mul u32 $r1 u32 c0[%frames]) $r2
element_of 0x8 $r10 $r11 $r2 %track
// Where the point was.
ld b64 $r4d ca g[$r10d-0x8]
add b32 $r2 (shl $r1 0x8) $r0
element $r12 $r13 $r2 %templates
ld b32 $r14 ca g[$r12d]
shl b32 $r15 $r0 clamp 0x2
st b32 s[$r15] $r14
mov b32 $r6 c0[%side]
sub b32 $r7 $r6 0x1
// The pixels around it, 8 rows at a time.
and b32 $r8 $r0 0x1f
add b32 $r8 $r8 $r4
sub b32 $r8 $r8 0x8
max s32 $r8 $r8 0x0
min s32 $r8 $r8 $r7
shr u32 $r9 $r0 clamp 0x5
add b32 $r9 $r9 $r5
sub b32 $r9 $r9 0x8
mov b32 $r16 $r15
mov b32 $r17 0x0
pixels:
max s32 $r18 $r9 0x0
min s32 $r18 $r18 $r7
add $r18 (mul u32 $r18 u32 $r6) $r8
element $r20 $r21 $r18 %frame
ld b32 $r19 ca g[$r20d]
st b32 s[$r16+0x400] $r19
add b32 $r9 $r9 0x8
add b32 $r16 $r16 0x400
add b32 $r17 $r17 0x1
set $p0 0x1 lt u32 $r17 0x4
$p0 bra #pixels
barrier
and b32 $r2 $r0 0xf
shr u32 $r3 $r0 clamp 0x4
add b32 $r9 (shl $r3 0x5) $r2
shl b32 $r9 $r9 clamp 0x2
mov b32 $r8 0x0
mov b32 $r16 0x0
mov b32 $r17 0x0
mov b32 $r18 0x0
mov b32 $r19 0x0
row:
ld b128 $r20q s[$r8]
ld b128 $r24q s[$r8+0x10]
pixel 0x400 $r20
pixel 0x404 $r21
pixel 0x408 $r22
pixel 0x40c $r23
pixel 0x410 $r24
pixel 0x414 $r25
pixel 0x418 $r26
pixel 0x41c $r27
ld b128 $r20q s[$r8+0x20]
ld b128 $r24q s[$r8+0x30]
pixel 0x420 $r20
pixel 0x424 $r21
pixel 0x428 $r22
pixel 0x42c $r23
pixel 0x430 $r24
pixel 0x434 $r25
pixel 0x438 $r26
pixel 0x43c $r27
add b32 $r8 $r8 0x40
add b32 $r9 $r9 0x80
set $p0 0x1 lt u32 $r8 0x400
$p0 bra #row
// Covariance and variance, both by 256: $r18 - $r19 * $r16 / 256, $r17 - $r16 * $r16 / 256. A window of one colour
// has variance 0, by which nothing can be divided.
mov b32 $r20 0xbb800000
mul rn f32 $r19 $r19 $r16
fma rn f32 $r18 $r19 $r20 $r18
mul rn f32 $r16 $r16 $r16
fma rn f32 $r17 $r16 $r20 $r17
max f32 $r17 $r17 0x43800000
square_root $r20 $r17 $r21 $r22
divide $r16 $r18 $r20 $r21 $r22
mov b32 $r17 $r0
st b32 s[$r15+0x1400] $r16
st b32 s[$r15+0x1800] $r17
barrier
// The best, and of several the first.
mov b32 $r8 0x80
best:
set $p1 0x1 lt u32 $r0 $r8
add b32 $r9 (shl $r8 0x2) $r15
$p1 ld b32 $r18 s[$r9+0x1400]
$p1 ld b32 $r19 s[$r9+0x1800]
set $p2 0x1 eq f32 $r18 $r16
set $p2 0x1 lt u32 $r19 $r17 and $p2
set $p2 0x1 gt f32 $r18 $r16 or $p2
set $p2 0x1 $p2 and $p1
$p2 mov b32 $r16 $r18
$p2 mov b32 $r17 $r19
$p1 st b32 s[$r15+0x1400] $r16
$p1 st b32 s[$r15+0x1800] $r17
barrier
shr u32 $r8 $r8 clamp 0x1
set $p0 0x1 ne u32 $r8 0x0
$p0 bra #best
mov b32 $r17 0x0
ld b32 $r17 s[$r17+0x1800]
and b32 $r8 $r17 0xf
shr u32 $r9 $r17 clamp 0x4
// This thread's pixel of the best window.
add b32 $r18 $r9 $r3
add b32 $r18 (shl $r18 0x5) $r2
add b32 $r18 $r18 $r8
shl b32 $r18 $r18 clamp 0x2
ld b32 $r18 s[$r18+0x400]
add rn f32 $r14 $r14 neg $r18
fma rn f32 $r14 $r14 c0[%keep] $r18
st b32 wb g[$r12d] $r14
set $p0 0x1 ne u32 $r0 0x0
$p0 exit
// The point stays where its template fits into the frame.
sub b32 $r7 $r6 0x10
max s32 $r7 $r7 0x0
add b32 $r4 $r4 $r8
sub b32 $r4 $r4 0x8
max s32 $r4 $r4 0x0
min s32 $r4 $r4 $r7
add b32 $r5 $r5 $r9
sub b32 $r5 $r5 0x8
max s32 $r5 $r5 0x0
min s32 $r5 $r5 $r7
st b64 wb g[$r10d] $r4d
exit

// out (rows x columns) = left (rows x inner) * right (inner x columns), row-major, any sizes. Blocks of 16 x 16.
// Each element is a chain of fused multiply-adds over ascending inner index from +0; behind the end factors are +0.
// Tiles: s[0x000..0x3ff] of left, s[0x400..0x7ff] of right.
.param left u64
.param right u64
.param out u64
.param rows u32
.param inner u32
.param columns u32
.shared 2048

// Four steps along the tiles.
.macro four row first second third fourth
    ld b128 $r24q s[$r11+%row]
    ld b32 $r28 s[$r12+%first]
    ld b32 $r29 s[$r12+%second]
    ld b32 $r30 s[$r12+%third]
    ld b32 $r31 s[$r12+%fourth]
    fma rn f32 $r8 $r24 $r28 $r8
    fma rn f32 $r8 $r25 $r29 $r8
    fma rn f32 $r8 $r26 $r30 $r8
    fma rn f32 $r8 $r27 $r31 $r8
.endm

mov b32 $r0 $tidx
mov b32 $r1 $tidy
thread_x $r4 $r2
thread_y $r5 $r2
add b32 $r10 (shl $r1 0x4) $r0
shl b32 $r10 $r10 clamp 0x2
shl b32 $r11 $r1 clamp 0x6
shl b32 $r12 $r0 clamp 0x2
mov b32 $r8 0x0
mov b32 $r9 0x0
mov b32 $r6 c0[%inner]
mov b32 $r7 c0[%columns]
// Whether this thread's row and column exist.
set $p2 0x1 lt u32 $r5 c0[%rows]
set $p3 0x1 lt u32 $r4 $r7
tile:
mov b32 $r16 0x0
mov b32 $r17 0x0
add b32 $r13 $r9 $r0
set $p0 0x1 lt u32 $r13 $r6 and $p2
add $r13 (mul u32 $r5 u32 $r6) $r13
element $r14 $r15 $r13 %left
$p0 ld b32 $r16 ca g[$r14d]
add b32 $r13 $r9 $r1
set $p0 0x1 lt u32 $r13 $r6 and $p3
add $r13 (mul u32 $r13 u32 $r7) $r4
element $r14 $r15 $r13 %right
$p0 ld b32 $r17 ca g[$r14d]
st b32 s[$r10+0x0] $r16
st b32 s[$r10+0x400] $r17
barrier
four 0x000 0x400 0x440 0x480 0x4c0
four 0x010 0x500 0x540 0x580 0x5c0
four 0x020 0x600 0x640 0x680 0x6c0
four 0x030 0x700 0x740 0x780 0x7c0
barrier
add b32 $r9 $r9 0x10
set $p1 0x1 lt u32 $r9 $r6
$p1 bra #tile
(not $p2) exit
(not $p3) exit
add $r13 (mul u32 $r5 u32 $r7) $r4
element $r14 $r15 $r13 %out
st b32 wb g[$r14d] $r8
exit

// Signs blocks of memory as `sign` does, by the MD5 (RFC 1321) of each part, which is the paper's way. Parts are whole
// chunks of 16 words. MD5 has no key, and whoever wants two parts with one signature can make them.
.param memory u64
.param frames u64
.param signatures u64
.param block_bytes u32
.param words u32

// a = b + (a + %f + %message + %constant rotated to the left): the end of a step, %f in $r6.
.macro md5_end a b message constant left right
    add b32 %a %a $r6
    add b32 %a %a %message
    add b32 %a %a %constant
    shr u32 $r6 %a clamp %right
    add b32 %a (shl %a %left) $r6
    add b32 %a %a %b
.endm

// Steps of the four rounds.
.macro md5_f a b c d message constant left right
    xor b32 $r6 %c %d
    and b32 $r6 $r6 %b
    xor b32 $r6 $r6 %d
    md5_end %a %b %message %constant %left %right
.endm

.macro md5_g a b c d message constant left right
    xor b32 $r6 %b %c
    and b32 $r6 $r6 %d
    xor b32 $r6 $r6 %c
    md5_end %a %b %message %constant %left %right
.endm

.macro md5_h a b c d message constant left right
    xor b32 $r6 %b %c
    xor b32 $r6 $r6 %d
    md5_end %a %b %message %constant %left %right
.endm

.macro md5_i a b c d message constant left right
    or b32 $r6 %b not %d
    xor b32 $r6 $r6 %c
    md5_end %a %b %message %constant %left %right
.endm

mov b32 $r0 $ctaidx
add b32 $r0 $r0 c0[0x18]
mov b32 $r1 $tidx
element $r2 $r3 $r0 %frames
ld b32 $r4 cg g[$r2d]
mov b32 $r5 c0[%block_bytes]
add $r2 $c (mul u32 $r4 u32 $r5) c0[%memory]
add $r3 (mul high u32 $r4 u32 $r5) c0[%memory+4] $c
shl b32 $r4 $r1 clamp 0x2
add b32 $r2 $c $r2 $r4
add b32 $r3 $r3 0x0 $c
mov b32 $r8 0x67452301
mov b32 $r9 0xefcdab89
mov b32 $r10 0x98badcfe
mov b32 $r11 0x10325476
mov b32 $r4 c0[%words]
shr u32 $r4 $r4 clamp 0x4
chunk:
set $p0 0x1 eq u32 $r4 0x0
$p0 bra #padding
ld b32 $r16 cg g[$r2d+0x0]
ld b32 $r17 cg g[$r2d+0x400]
ld b32 $r18 cg g[$r2d+0x800]
ld b32 $r19 cg g[$r2d+0xc00]
ld b32 $r20 cg g[$r2d+0x1000]
ld b32 $r21 cg g[$r2d+0x1400]
ld b32 $r22 cg g[$r2d+0x1800]
ld b32 $r23 cg g[$r2d+0x1c00]
ld b32 $r24 cg g[$r2d+0x2000]
ld b32 $r25 cg g[$r2d+0x2400]
ld b32 $r26 cg g[$r2d+0x2800]
ld b32 $r27 cg g[$r2d+0x2c00]
ld b32 $r28 cg g[$r2d+0x3000]
ld b32 $r29 cg g[$r2d+0x3400]
ld b32 $r30 cg g[$r2d+0x3800]
ld b32 $r31 cg g[$r2d+0x3c00]
add b32 $r2 $c $r2 0x4000
add b32 $r3 $r3 0x0 $c
bra #steps
// The last chunk: one bit, and the number of bits.
padding:
mov b32 $r16 0x80
mov b32 $r17 0x0
mov b32 $r18 0x0
mov b32 $r19 0x0
mov b32 $r20 0x0
mov b32 $r21 0x0
mov b32 $r22 0x0
mov b32 $r23 0x0
mov b32 $r24 0x0
mov b32 $r25 0x0
mov b32 $r26 0x0
mov b32 $r27 0x0
mov b32 $r28 0x0
mov b32 $r29 0x0
mov b32 $r30 c0[%words]
shr u32 $r31 $r30 clamp 0x1b
shl b32 $r30 $r30 clamp 0x5
steps:
mov b32 $r12 $r8
mov b32 $r13 $r9
mov b32 $r14 $r10
mov b32 $r15 $r11
md5_f $r8 $r9 $r10 $r11 $r16 0xd76aa478 0x7 0x19
md5_f $r11 $r8 $r9 $r10 $r17 0xe8c7b756 0xc 0x14
md5_f $r10 $r11 $r8 $r9 $r18 0x242070db 0x11 0xf
md5_f $r9 $r10 $r11 $r8 $r19 0xc1bdceee 0x16 0xa
md5_f $r8 $r9 $r10 $r11 $r20 0xf57c0faf 0x7 0x19
md5_f $r11 $r8 $r9 $r10 $r21 0x4787c62a 0xc 0x14
md5_f $r10 $r11 $r8 $r9 $r22 0xa8304613 0x11 0xf
md5_f $r9 $r10 $r11 $r8 $r23 0xfd469501 0x16 0xa
md5_f $r8 $r9 $r10 $r11 $r24 0x698098d8 0x7 0x19
md5_f $r11 $r8 $r9 $r10 $r25 0x8b44f7af 0xc 0x14
md5_f $r10 $r11 $r8 $r9 $r26 0xffff5bb1 0x11 0xf
md5_f $r9 $r10 $r11 $r8 $r27 0x895cd7be 0x16 0xa
md5_f $r8 $r9 $r10 $r11 $r28 0x6b901122 0x7 0x19
md5_f $r11 $r8 $r9 $r10 $r29 0xfd987193 0xc 0x14
md5_f $r10 $r11 $r8 $r9 $r30 0xa679438e 0x11 0xf
md5_f $r9 $r10 $r11 $r8 $r31 0x49b40821 0x16 0xa
md5_g $r8 $r9 $r10 $r11 $r17 0xf61e2562 0x5 0x1b
md5_g $r11 $r8 $r9 $r10 $r22 0xc040b340 0x9 0x17
md5_g $r10 $r11 $r8 $r9 $r27 0x265e5a51 0xe 0x12
md5_g $r9 $r10 $r11 $r8 $r16 0xe9b6c7aa 0x14 0xc
md5_g $r8 $r9 $r10 $r11 $r21 0xd62f105d 0x5 0x1b
md5_g $r11 $r8 $r9 $r10 $r26 0x2441453 0x9 0x17
md5_g $r10 $r11 $r8 $r9 $r31 0xd8a1e681 0xe 0x12
md5_g $r9 $r10 $r11 $r8 $r20 0xe7d3fbc8 0x14 0xc
md5_g $r8 $r9 $r10 $r11 $r25 0x21e1cde6 0x5 0x1b
md5_g $r11 $r8 $r9 $r10 $r30 0xc33707d6 0x9 0x17
md5_g $r10 $r11 $r8 $r9 $r19 0xf4d50d87 0xe 0x12
md5_g $r9 $r10 $r11 $r8 $r24 0x455a14ed 0x14 0xc
md5_g $r8 $r9 $r10 $r11 $r29 0xa9e3e905 0x5 0x1b
md5_g $r11 $r8 $r9 $r10 $r18 0xfcefa3f8 0x9 0x17
md5_g $r10 $r11 $r8 $r9 $r23 0x676f02d9 0xe 0x12
md5_g $r9 $r10 $r11 $r8 $r28 0x8d2a4c8a 0x14 0xc
md5_h $r8 $r9 $r10 $r11 $r21 0xfffa3942 0x4 0x1c
md5_h $r11 $r8 $r9 $r10 $r24 0x8771f681 0xb 0x15
md5_h $r10 $r11 $r8 $r9 $r27 0x6d9d6122 0x10 0x10
md5_h $r9 $r10 $r11 $r8 $r30 0xfde5380c 0x17 0x9
md5_h $r8 $r9 $r10 $r11 $r17 0xa4beea44 0x4 0x1c
md5_h $r11 $r8 $r9 $r10 $r20 0x4bdecfa9 0xb 0x15
md5_h $r10 $r11 $r8 $r9 $r23 0xf6bb4b60 0x10 0x10
md5_h $r9 $r10 $r11 $r8 $r26 0xbebfbc70 0x17 0x9
md5_h $r8 $r9 $r10 $r11 $r29 0x289b7ec6 0x4 0x1c
md5_h $r11 $r8 $r9 $r10 $r16 0xeaa127fa 0xb 0x15
md5_h $r10 $r11 $r8 $r9 $r19 0xd4ef3085 0x10 0x10
md5_h $r9 $r10 $r11 $r8 $r22 0x4881d05 0x17 0x9
md5_h $r8 $r9 $r10 $r11 $r25 0xd9d4d039 0x4 0x1c
md5_h $r11 $r8 $r9 $r10 $r28 0xe6db99e5 0xb 0x15
md5_h $r10 $r11 $r8 $r9 $r31 0x1fa27cf8 0x10 0x10
md5_h $r9 $r10 $r11 $r8 $r18 0xc4ac5665 0x17 0x9
md5_i $r8 $r9 $r10 $r11 $r16 0xf4292244 0x6 0x1a
md5_i $r11 $r8 $r9 $r10 $r23 0x432aff97 0xa 0x16
md5_i $r10 $r11 $r8 $r9 $r30 0xab9423a7 0xf 0x11
md5_i $r9 $r10 $r11 $r8 $r21 0xfc93a039 0x15 0xb
md5_i $r8 $r9 $r10 $r11 $r28 0x655b59c3 0x6 0x1a
md5_i $r11 $r8 $r9 $r10 $r19 0x8f0ccc92 0xa 0x16
md5_i $r10 $r11 $r8 $r9 $r26 0xffeff47d 0xf 0x11
md5_i $r9 $r10 $r11 $r8 $r17 0x85845dd1 0x15 0xb
md5_i $r8 $r9 $r10 $r11 $r24 0x6fa87e4f 0x6 0x1a
md5_i $r11 $r8 $r9 $r10 $r31 0xfe2ce6e0 0xa 0x16
md5_i $r10 $r11 $r8 $r9 $r22 0xa3014314 0xf 0x11
md5_i $r9 $r10 $r11 $r8 $r29 0x4e0811a1 0x15 0xb
md5_i $r8 $r9 $r10 $r11 $r20 0xf7537e82 0x6 0x1a
md5_i $r11 $r8 $r9 $r10 $r27 0xbd3af235 0xa 0x16
md5_i $r10 $r11 $r8 $r9 $r18 0x2ad7d2bb 0xf 0x11
md5_i $r9 $r10 $r11 $r8 $r25 0xeb86d391 0x15 0xb
add b32 $r8 $r8 $r12
add b32 $r9 $r9 $r13
add b32 $r10 $r10 $r14
add b32 $r11 $r11 $r15
add b32 $r4 $r4 0xffffffff
set $p0 0x1 ne u32 $r4 0xffffffff
$p0 bra #chunk
add b32 $r0 (shl $r0 0x8) $r1
element_of 0x10 $r2 $r3 $r0 %signatures
st b128 wb g[$r2d] $r8q
exit

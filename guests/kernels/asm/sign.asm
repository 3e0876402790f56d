// Signs blocks of memory: a block of 256 threads each, and each thread every 256th word, in parts as in Figure 5 of Wang et al.
// (GDM, SIGMETRICS'14). A part's signature is its HalfSipHash-1-3 with 64 bits (Aumasson and Bernstein's reference of SipHash):
// who does not know the key finds no two parts with the same one.
.param memory u64
.param frames u64
.param signatures u64
.param block_bytes u32
.param words u32
.param key_low u32
.param key_high u32

// x rotated to the left: what leaves at the top comes in at the bottom.
.macro rotate x spare left right
    shr u32 %spare %x clamp %right
    add b32 %x (shl %x %left) %spare
.endm

// SipRound on 32-bit words.
.macro sip_round a b c d spare
    add b32 %a %a %b
    rotate %b %spare 0x5 0x1b
    xor b32 %b %b %a
    rotate %a %spare 0x10 0x10
    add b32 %c %c %d
    rotate %d %spare 0x8 0x18
    xor b32 %d %d %c
    add b32 %a %a %d
    rotate %d %spare 0x7 0x19
    xor b32 %d %d %a
    add b32 %c %c %b
    rotate %b %spare 0xd 0x13
    xor b32 %b %b %c
    rotate %c %spare 0x10 0x10
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
mov b32 $r8 c0[%key_low]
mov b32 $r9 c0[%key_high]
xor b32 $r9 $r9 0xee
mov b32 $r10 0x6c796765
xor b32 $r10 $r10 c0[%key_low]
mov b32 $r11 0x74656462
xor b32 $r11 $r11 c0[%key_high]
mov b32 $r4 c0[%words]
word:
ld b32 $r5 cg g[$r2d]
xor b32 $r11 $r11 $r5
sip_round $r8 $r9 $r10 $r11 $r6
xor b32 $r8 $r8 $r5
add b32 $r2 $c $r2 0x400
add b32 $r3 $r3 0x0 $c
add b32 $r4 $r4 0xffffffff
set $p0 0x1 ne u32 $r4 0x0
$p0 bra #word
// The last word has the number of bytes at its top.
mov b32 $r5 c0[%words]
shl b32 $r5 $r5 clamp 0x1a
xor b32 $r11 $r11 $r5
sip_round $r8 $r9 $r10 $r11 $r6
xor b32 $r8 $r8 $r5
xor b32 $r10 $r10 0xee
sip_round $r8 $r9 $r10 $r11 $r6
sip_round $r8 $r9 $r10 $r11 $r6
sip_round $r8 $r9 $r10 $r11 $r6
xor b32 $r4 $r9 $r11
xor b32 $r9 $r9 0xdd
sip_round $r8 $r9 $r10 $r11 $r6
sip_round $r8 $r9 $r10 $r11 $r6
sip_round $r8 $r9 $r10 $r11 $r6
xor b32 $r5 $r9 $r11
add b32 $r0 (shl $r0 0x8) $r1
element_of 0x8 $r2 $r3 $r0 %signatures
st b64 wb g[$r2d] $r4d
exit

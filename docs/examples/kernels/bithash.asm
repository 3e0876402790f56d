// bithash: 32-bit avalanche mix plus bit statistics, one u32 per thread
//   h = x; h ^= h>>16; h *= 0x85ebca6b; h ^= h>>13; h *= 0xc2b2ae35; h ^= h>>16;
//   s = popc(x) | (bfind(x) & 0xff) << 8 | (bit 0..7 of bitreverse(x)) << 16 | byte3(x) << 24
//   out[2*i] = h; out[2*i+1] = s;
mov b32 $r0 $ctaidx
mov b32 $r1 $ntidx
mov b32 $r2 $tidx
add $r0 (mul u32 $r0 u32 $r1) $r2
set $p0 0x1 ge u32 $r0 c0[0x30]
$p0 exit
mov b32 $r3 0x4
add $r4 $c (mul u32 $r0 u32 $r3) c0[0x20]
add $r5 (mul high u32 $r0 u32 $r3) c0[0x24] $c
ld b32 $r6 ca g[$r4d+0x0]
shr u32 $r7 $r6 clamp 0x10
xor b32 $r8 $r6 $r7
mul $r8 u32 $r8 u32 0x85ebca6b
shr u32 $r7 $r8 clamp 0xd
xor b32 $r8 $r8 $r7
mul $r8 u32 $r8 u32 0xc2b2ae35
shr u32 $r7 $r8 clamp 0x10
xor b32 $r8 $r8 $r7
popc $r9 $r6 $r6
bfind u32 $r10 $r6
ins b32 $r9 $r10 0x808 $r9
ext rev u32 $r10 $r6 0x2000
ins b32 $r9 $r10 0x810 $r9
prmt b32 $r10 $r6 0x123 $r63
ins b32 $r9 $r10 0x818 $r9
mov b32 $r3 0x8
add $r4 $c (mul u32 $r0 u32 $r3) c0[0x28]
add $r5 (mul high u32 $r0 u32 $r3) c0[0x2c] $c
st b64 wb g[$r4d+0x0] $r8d
exit

#version 430
// Integers of 32 bits: each invocation works on two words.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { uint given[]; };
layout(std430, binding = 1) writeonly buffer Out { uint results[]; };

const uint COLUMNS = 32u;

void main() {
    uint i = gl_GlobalInvocationID.x;
    uint a = given[2u * i], b = given[2u * i + 1u];
    int s = int(a), t = int(b);
    // Divisors are neither 0 nor, with the smallest number, -1: both are undefined.
    uint d = (b >> (a & 31u)) | 1u;
    int e = t >> (a & 15u) | 3;
    uint o = COLUMNS * i;
    results[o++] = a + b;
    results[o++] = a - b;
    results[o++] = a * b;
    results[o++] = a / d;
    results[o++] = a % d;
    results[o++] = uint(s / e);
    results[o++] = uint(s % abs(e));
    results[o++] = a << (b & 31u);
    results[o++] = a >> (b & 31u);
    results[o++] = uint(s >> (b & 31u));
    results[o++] = (a & b) | (~a ^ b);
    results[o++] = min(a, b) ^ uint(max(s, t));
    results[o++] = uint(clamp(s, -1000, 1000) + abs(t >> 1) + sign(s));
    results[o++] = bitfieldExtract(a, int(b & 15u), int(b >> 4 & 15u));
    results[o++] = uint(bitfieldExtract(s, int(b & 15u), int(b >> 4 & 15u)));
    results[o++] = bitfieldInsert(a, b, int(b & 15u), int(b >> 4 & 15u));
    results[o++] = bitfieldReverse(a);
    results[o++] = uint(bitCount(a)) << 16 | uint(findLSB(b) & 0xff) << 8 | uint(findMSB(b) & 0xff);
    results[o++] = uint(findMSB(s >> (b & 31u)));
    uint high, low, carry, borrow;
    umulExtended(a, b, high, low);
    results[o++] = high;
    results[o++] = low;
    int shigh, slow;
    imulExtended(s, t, shigh, slow);
    results[o++] = uint(shigh);
    results[o++] = uint(slow);
    results[o++] = uaddCarry(a, b, carry);
    results[o++] = carry;
    results[o++] = usubBorrow(a, b, borrow);
    results[o++] = borrow;
    results[o++] = uint(a < b) | uint(s < t) << 1 | uint(a >= d) << 2 | uint(s == t) << 3 | uint(s >= e) << 4;
    uvec4 v = uvec4(a, b, a ^ b, a + b);
    results[o++] = dot(vec4(greaterThan(v, v.wzyx)), vec4(1.0, 2.0, 4.0, 8.0)) > 4.0 ? v.x : v.w;
    uvec3 w = (v.xyz * v.yzw + v.zwx) >> 3u;
    results[o++] = w.x;
    results[o++] = w.y;
    results[o++] = w.z;
}

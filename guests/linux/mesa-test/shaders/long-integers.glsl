#version 430
// Integers of 64 bits. Without what Mesa gets wrong for this card: products of 64 bits, for which it takes 0 for half of
// one number, and shifts by `x & 63`, of which it drops the mask.
#extension GL_ARB_gpu_shader_int64 : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { uvec4 given[]; };
layout(std430, binding = 1) writeonly buffer Out { uvec2 results[]; };

const uint COLUMNS = 12u;

void main() {
    uint i = gl_GlobalInvocationID.x;
    uint64_t a = packUint2x32(given[i].xy), b = packUint2x32(given[i].zw);
    int64_t s = int64_t(a), t = int64_t(b);
    int n = int(given[i].x >> 26);
    uint o = COLUMNS * i;
    results[o++] = unpackUint2x32(a + b);
    results[o++] = unpackUint2x32(a - b);
    results[o++] = unpackUint2x32(a << n);
    results[o++] = unpackUint2x32(a >> n);
    results[o++] = unpackUint2x32(uint64_t(s >> n));
    results[o++] = unpackUint2x32(min(a, b) ^ uint64_t(max(s, t)));
    results[o++] = unpackUint2x32(uint64_t(abs(s >> 1)) + uint64_t(sign(t)));
    results[o++] = uvec2(uint(a < b) | uint(s < t) << 1, uint(a == b) | uint(s >= t) << 1);
    results[o++] = unpackUint2x32(uint64_t(given[i].x) * uint64_t(given[i].y));
    results[o++] = unpackUint2x32(uint64_t(int64_t(int(given[i].x)) * int64_t(int(given[i].y))));
    results[o++] = unpackUint2x32(~a & b | a ^ 0x0123456789abcdeful);
    results[o++] = uvec2(floatBitsToUint(float(given[i].x >> 8)), uint(a >> 20));
}

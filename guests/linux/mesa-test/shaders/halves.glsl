#version 430
// Conversions between f32 and packed formats.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { vec4 given[]; };
layout(std430, binding = 1) writeonly buffer Out { uint results[]; };

const uint COLUMNS = 12u;

void main() {
    uint i = gl_GlobalInvocationID.x;
    vec4 a = given[i];
    uint o = COLUMNS * i;
    uint half_pair = packHalf2x16(a.xy);
    results[o++] = half_pair;
    vec2 back = unpackHalf2x16(half_pair);
    results[o++] = floatBitsToUint(back.x);
    results[o++] = floatBitsToUint(back.y);
    results[o++] = packUnorm4x8(a * 0.0078125);
    results[o++] = packSnorm4x8(a * 0.0078125);
    results[o++] = packUnorm2x16(a.zw * 0.0078125);
    results[o++] = packSnorm2x16(a.zw * 0.0078125);
    vec4 unit = unpackUnorm4x8(floatBitsToUint(a.x));
    results[o++] = uint(roundEven(unit.x * 255.0)) | uint(roundEven(unit.w * 255.0)) << 8;
    vec4 signed_unit = unpackSnorm4x8(floatBitsToUint(a.y));
    results[o++] = uint(int(roundEven(signed_unit.y * 127.0)));
    vec2 wide = unpackUnorm2x16(floatBitsToUint(a.z));
    results[o++] = uint(roundEven(wide.x * 65535.0)) ^ uint(roundEven(wide.y * 65535.0)) << 16;
    results[o++] = uint(int(a.x * 3.0)) ^ uint(int(a.y)) << 16;
    results[o++] = floatBitsToUint(unpackHalf2x16(floatBitsToUint(a.w) & 0x7bff7bffu | 0x04000400u).x);
}

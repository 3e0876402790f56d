#version 430
// Atomics on images: sums, extremes, bits, compare and exchange; a histogram in a line of texels.
layout(local_size_x = 8, local_size_y = 8) in;
layout(r32ui, binding = 0) uniform uimage2D texels;
layout(r32i, binding = 1) uniform iimage2D extremes;
layout(r32ui, binding = 2) uniform uimage3D volume;
layout(r32ui, binding = 3) coherent uniform uimageBuffer line;
layout(std430, binding = 0) readonly buffer In { uint given[]; };
layout(std430, binding = 1) buffer Out { uint sum; uint drawn; };

void main() {
    ivec2 g = ivec2(gl_GlobalInvocationID.xy);
    uint value = given[g.y * int(gl_NumWorkGroups.x) * 8 + g.x];
    ivec2 at = g / 4;
    imageAtomicAdd(texels, at, value);
    imageAtomicMin(extremes, at, int(value));
    imageAtomicMax(extremes, at + ivec2(8, 0), int(value));
    imageAtomicAnd(texels, at + ivec2(8, 0), value | 0xff00ff00u);
    imageAtomicOr(texels, at + ivec2(16, 0), value & 0x0ff00ff0u);
    imageAtomicXor(texels, at + ivec2(24, 0), value);
    imageAtomicAdd(volume, ivec3(at, g.x & 3), 1u);
    imageAtomicAdd(line, int(value & 127u), 3u);
    // Each value is handed on once; the last stays and is added behind.
    atomicAdd(sum, imageAtomicExchange(texels, ivec2(0, 16), value));
    uint seen = imageLoad(line, 200).x, before;
    do {
        before = seen;
        seen = imageAtomicCompSwap(line, 200, before, before + (value & 7u));
    } while (seen != before);
    // Outside: nothing happens and zero comes back.
    atomicAdd(drawn, imageAtomicAdd(texels, ivec2(1000, 0), 1u) + 1u);
}

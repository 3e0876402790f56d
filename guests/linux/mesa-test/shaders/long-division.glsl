#version 430
// Division of integers of 64 bits. Mesa writes a loop for each; its register allocation on this card fails for many.
#extension GL_ARB_gpu_shader_int64 : require
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { uvec4 given[]; };
layout(std430, binding = 1) writeonly buffer Out { uvec2 results[]; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    uint64_t a = packUint2x32(given[i].xy), b = packUint2x32(given[i].zw) >> int(given[i].x >> 26) | 1ul;
    uint64_t quotient = a / b;
    results[i] = unpackUint2x32(quotient);
}

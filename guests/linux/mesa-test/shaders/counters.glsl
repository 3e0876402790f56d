#version 430
// Atomic counters: each value is drawn once.
layout(local_size_x = 64) in;
layout(binding = 0, offset = 0) uniform atomic_uint up;
layout(binding = 0, offset = 4) uniform atomic_uint down;
layout(std430, binding = 0) buffer Out { uint drawn[]; };

void main() {
    uint mine = atomicCounterIncrement(up);
    drawn[mine] = mine * 3u;
    if ((gl_GlobalInvocationID.x & 1u) == 0u) {
        uint other = atomicCounterDecrement(down);
        drawn[256u + other] = other ^ 0x5a5au;
    }
    if (gl_GlobalInvocationID.x == 0u)
        drawn[512] = atomicCounter(up) > 0u ? 1u : 0u;
}

#version 430
// Histograms in shared memory, and locks made of compare and exchange.
layout(local_size_x = 128) in;
layout(std430, binding = 0) readonly buffer In { uint given[]; };
layout(std430, binding = 1) buffer Out { uint bins[]; };

shared uint counts[64];
shared int least;
shared uint most, bits, slot, handed_on, changed;

void main() {
    uint i = gl_LocalInvocationID.x;
    if (i < 64u)
        counts[i] = 0u;
    if (i == 0u) {
        least = 0x7fffffff;
        most = 0u;
        bits = 0u;
        slot = 0u;
        handed_on = 0u;
        changed = 0u;
    }
    barrier();
    uint value = given[gl_GlobalInvocationID.x];
    atomicAdd(counts[value & 63u], 1u);
    atomicMin(least, int(value));
    atomicMax(most, value);
    atomicXor(bits, value);
    atomicAdd(handed_on, atomicExchange(slot, value));
    uint seen = changed, before;
    do {
        before = seen;
        seen = atomicCompSwap(changed, before, before + (value & 3u));
    } while (seen != before);
    barrier();
    uint o = gl_WorkGroupID.x * 72u;
    if (i < 64u)
        bins[o + i] = counts[i];
    if (i == 0u) {
        bins[o + 64u] = uint(least);
        bins[o + 65u] = most;
        bins[o + 66u] = bits;
        bins[o + 67u] = handed_on + slot;
        bins[o + 68u] = changed;
    }
}

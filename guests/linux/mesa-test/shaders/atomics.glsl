#version 430
// Atomics on storage buffers, in ways whose outcome does not depend on the order.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { uint given[]; };
layout(std430, binding = 1) coherent buffer Out {
    uint sum, least, most, all, any, odd;
    int least_signed, most_signed;
    uint taken, handed_on, slot, replaced;
    uint tickets[64];
    uint bins[256];
};

void main() {
    uint i = gl_GlobalInvocationID.x;
    uint value = given[i];
    atomicAdd(sum, value);
    atomicMin(least, value);
    atomicMax(most, value);
    atomicAnd(all, value | 0xffu);
    atomicOr(any, value & 0x00ffff00u);
    atomicXor(odd, value);
    atomicMin(least_signed, int(value));
    atomicMax(most_signed, int(value));
    atomicAdd(bins[value >> 24], 1u);
    // Each ticket is drawn once, so the sum of what is done with them is known.
    uint ticket = atomicAdd(taken, 1u);
    atomicAdd(tickets[ticket & 63u], ticket);
    // Each value is handed on once; the last stays, so that the sum of both is known.
    atomicAdd(handed_on, atomicExchange(slot, value));
    // Increment by compare and exchange.
    uint seen = replaced, before;
    do {
        before = seen;
        seen = atomicCompSwap(replaced, before, before + (value & 7u));
    } while (seen != before);
}

#version 430
// Branches by value, arrays that are indexed by the lane, functions that change their arguments.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { uint given[]; };
layout(std430, binding = 1) writeonly buffer Out { uint results[]; };

struct Stack {
    uint at;
    uint words[12];
};

void push(inout Stack s, uint value) {
    if (s.at < 12u)
        s.words[s.at++] = value;
}

uint pop(inout Stack s) {
    return s.at > 0u ? s.words[--s.at] : 1u;
}

void main() {
    uint i = gl_GlobalInvocationID.x;
    uint program = given[i];
    Stack s;
    s.at = 0u;
    for (uint k = 0u; k < 12u; k++)
        s.words[k] = k * 0x1111u;
    push(s, i);
    for (uint step = 0u; step < 16u; step++) {
        switch (program >> (2u * step) & 7u) {
        case 0u: push(s, step * 7u); break;
        case 1u: push(s, pop(s) + pop(s)); break;
        case 2u: push(s, pop(s) * 3u);
        // Falls through.
        case 3u: push(s, pop(s) ^ i); break;
        case 4u: s.at = min(s.at + 1u, 11u); break;
        case 5u: if (pop(s) % 3u == 0u) continue; break;
        case 6u: s.words[pop(s) % 12u] = step; break;
        default: push(s, s.words[i % 12u]);
        }
        s.words[step % 12u] += step;
    }
    uint hash = s.at;
    for (uint k = 0u; k < 12u; k++)
        hash = hash * 0x01000193u ^ s.words[k];
    results[i] = hash;
}

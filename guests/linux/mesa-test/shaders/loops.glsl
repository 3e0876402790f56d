#version 430
// Loops that each lane leaves at another time, nested, with break, continue and return.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { uint given[]; };
layout(std430, binding = 1) writeonly buffer Out { uvec4 results[]; };

uint collatz(uint n) {
    uint steps = 0u;
    while (n > 1u) {
        n = (n & 1u) == 0u ? n >> 1 : 3u * n + 1u;
        steps++;
        if (steps > 500u)
            return 0xffffffffu;
    }
    return steps;
}

uint gcd(uint a, uint b) {
    while (b != 0u) {
        uint r = a % b;
        a = b;
        b = r;
    }
    return a;
}

uint nested(uint seed) {
    uint found = 0u;
    for (uint a = 1u; a < 40u; a++) {
        if ((a * seed) % 7u == 3u)
            continue;
        for (uint b = a; b < 60u; b++) {
            if ((a ^ b ^ seed) % 5u == 0u)
                continue;
            if (a * b > seed % 900u)
                break;
            found = found * 31u + a * b;
            if (found > 0xf0000000u)
                return found;
        }
        if (found % 61u == 17u)
            break;
    }
    return found;
}

uint fixed_point(int x, int y) {
    int a = 0, b = 0;
    uint n = 0u;
    do {
        int next = (a * a - b * b >> 12) + x;
        b = (a * b >> 11) + y;
        a = next;
        n++;
    } while (a * a + b * b < 4 << 24 && n < 200u);
    return n;
}

void main() {
    uint i = gl_GlobalInvocationID.x;
    uint value = given[i];
    int x = int(i % 64u) * 192 - 8192, y = int(i / 64u) * 1024 - 4096;
    results[i] = uvec4(collatz(value & 0xffffu), gcd(value >> 16, value & 0xffffu | 1u), nested(value), fixed_point(x, y));
}

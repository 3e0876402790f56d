#version 430
// f64 operations that are laid down to the last bit.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { uvec4 given[]; };
layout(std430, binding = 1) writeonly buffer Out { uvec2 results[]; };

const uint COLUMNS = 16u;

void main() {
    uint i = gl_GlobalInvocationID.x;
    double a = packDouble2x32(given[i].xy), b = packDouble2x32(given[i].zw);
    precise double sum = a + b, difference = a - b, product = a * b;
    precise double chained = product * b + a;
    uint o = COLUMNS * i;
    results[o++] = unpackDouble2x32(sum);
    results[o++] = unpackDouble2x32(difference);
    results[o++] = unpackDouble2x32(product);
    results[o++] = unpackDouble2x32(chained);
    results[o++] = unpackDouble2x32(min(a, b));
    results[o++] = unpackDouble2x32(max(a, b));
    results[o++] = unpackDouble2x32(abs(a));
    results[o++] = unpackDouble2x32(-b);
    results[o++] = unpackDouble2x32(floor(a));
    results[o++] = unpackDouble2x32(ceil(a));
    results[o++] = unpackDouble2x32(trunc(b));
    results[o++] = unpackDouble2x32(double(float(a)));
    results[o++] = uvec2(uint(int(a)), uint(abs(b)));
    results[o++] = unpackDouble2x32(double(int(given[i].x)) + double(given[i].z));
    results[o++] = uvec2(uint(a < b) | uint(a >= b) << 1 | uint(a == a) << 2, uint(a != b));
    results[o++] = unpackDouble2x32(a > 0.0LF ? b : -a);
}

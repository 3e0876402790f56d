#version 430
// f32 operations whose result GLSL lays down to the last bit, or that are exact for the numbers given.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { vec2 given[]; };
layout(std430, binding = 1) writeonly buffer Out { float results[]; };

const uint COLUMNS = 24u;

void main() {
    uint i = gl_GlobalInvocationID.x;
    float a = given[i].x, b = given[i].y;
    precise float sum = a + b, difference = a - b, product = a * b;
    precise float chained = product + a;
    precise float polynomial = ((0.25 * a + 0.5) * a + 1.0) * b;
    uint o = COLUMNS * i;
    results[o++] = sum;
    results[o++] = difference;
    results[o++] = product;
    results[o++] = chained;
    results[o++] = polynomial;
    results[o++] = floor(a);
    results[o++] = ceil(a);
    results[o++] = trunc(a);
    results[o++] = roundEven(a);
    results[o++] = min(a, b);
    results[o++] = max(a, b);
    results[o++] = clamp(a, -b * b, b * b);
    results[o++] = abs(a) * sign(b);
    results[o++] = step(a, b);
    results[o++] = float(int(a));
    results[o++] = float(uint(abs(b)));
    results[o++] = uintBitsToFloat(uint(int(b * 256.0)));
    results[o++] = float(i * 0x01234567u);
    results[o++] = float(int(i * 0x89abcdefu));
    results[o++] = uintBitsToFloat(uint(a < b) | uint(a >= b) << 1 | uint(a == trunc(a)) << 2 | uint(isnan(a)) << 3);
    results[o++] = ldexp(a, int(i % 20u) - 10);
    int exponent;
    results[o++] = frexp(b, exponent);
    results[o++] = float(exponent);
    results[o++] = a > 0.0 ? b : -b;
}

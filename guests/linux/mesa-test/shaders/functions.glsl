#version 430
// f32 functions that may differ in the last bits.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { vec2 given[]; };
layout(std430, binding = 1) writeonly buffer Out { float results[]; };

const uint COLUMNS = 12u;

void main() {
    uint i = gl_GlobalInvocationID.x;
    float a = given[i].x, b = given[i].y;
    float positive = abs(a) + 0.015625;
    uint o = COLUMNS * i;
    results[o++] = a / (abs(b) + 0.5);
    results[o++] = 1.0 / positive;
    results[o++] = sqrt(positive);
    results[o++] = inversesqrt(positive);
    results[o++] = exp2(a * 0.03125);
    results[o++] = log2(positive);
    results[o++] = pow(positive, b * 0.0078125);
    results[o++] = sin(a * 0.0625);
    results[o++] = cos(a * 0.0625);
    results[o++] = length(vec3(a, b, 3.0));
    results[o++] = dot(normalize(vec3(a, b, 1.0)), vec3(0.5));
    results[o++] = mix(a, b, 0.25);
}

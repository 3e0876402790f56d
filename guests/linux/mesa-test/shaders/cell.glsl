#version 430
// A step of a cellular automaton; its groups are counted by a buffer on the card.
layout(local_size_x = 32, local_size_y = 2) in;
layout(std430, binding = 0) buffer Cells { uint cells[]; };
layout(std430, binding = 1) buffer Out { uint results[]; };
layout(std430, binding = 2) buffer Groups { uvec4 groups[]; };

void main() {
    uvec3 size = gl_NumWorkGroups * gl_WorkGroupSize;
    uvec3 g = gl_GlobalInvocationID;
    uint i = (g.z * size.y + g.y) * size.x + g.x;
    uint count = size.x * size.y * size.z;
    uint left = cells[(i + count - 1u) % count], right = cells[(i + 1u) % count];
    atomicAdd(results[i], (left ^ (cells[i] | right)) + gl_NumWorkGroups.x + (gl_NumWorkGroups.y << 8) + (gl_NumWorkGroups.z << 16));
    // The grid after this one.
    if (i == 0u)
        groups[1] = uvec4(gl_NumWorkGroups.y + 1u, gl_NumWorkGroups.x, 2u, 0u);
}

#version 430
// Constants: plain uniforms, blocks, blocks chosen by the lane, and the numbers of the grid.
layout(local_size_x = 8, local_size_y = 4, local_size_z = 2) in;
layout(std140, binding = 0) uniform Table { uvec4 rows[64]; } tables[3];
layout(std430, binding = 0) writeonly buffer Out { uint results[]; };
uniform uint factor;
uniform vec4 weights;

void main() {
    uvec3 size = gl_NumWorkGroups * gl_WorkGroupSize;
    uvec3 g = gl_GlobalInvocationID;
    uint i = (g.z * size.y + g.y) * size.x + g.x;
    uint table = 2u - gl_WorkGroupID.x % 3u;
    uvec4 fixed_row = tables[1].rows[7];
    uvec4 row = tables[table].rows[(i * 5u) & 63u];
    uint grid = gl_LocalInvocationIndex | gl_WorkGroupID.x << 8 | gl_WorkGroupID.y << 16 | gl_WorkGroupID.z << 24;
    results[2u * i] = row.x * factor + row[i & 3u] + fixed_row.y;
    results[2u * i + 1u] = grid ^ uint(dot(weights, vec4(g, 1.0))) ^ gl_NumWorkGroups.x * gl_NumWorkGroups.y;
}

#version 430
// Tiles of a matrix go through shared memory; groups of two dimensions.
layout(local_size_x = 16, local_size_y = 16) in;
layout(std430, binding = 0) readonly buffer In { vec2 given[]; };
layout(std430, binding = 1) writeonly buffer Out { vec2 turned[]; };

shared vec2 tile[16][17];

void main() {
    uvec2 l = gl_LocalInvocationID.xy, g = gl_GlobalInvocationID.xy;
    uvec2 size = gl_NumWorkGroups.xy * 16u;
    tile[l.y][l.x] = given[g.y * size.x + g.x];
    barrier();
    uvec2 target = gl_WorkGroupID.yx * 16u + l;
    turned[target.y * size.y + target.x] = tile[l.x][l.y].yx + vec2(l);
}

#version 430
// Images of all shapes: whole volumes, layers, cubes, one layer of an array, buffers, lines.
layout(local_size_x = 4, local_size_y = 4, local_size_z = 4) in;
layout(r32ui, binding = 0) uniform uimage3D volume;
layout(r32ui, binding = 1) uniform uimage2DArray layers;
layout(r32ui, binding = 2) uniform uimageCube cube;
layout(r32ui, binding = 3) uniform uimage2D slice;
layout(r32ui, binding = 4) uniform uimageBuffer line;
layout(rgba16ui, binding = 5) uniform uimage1D row;
layout(std430, binding = 0) writeonly buffer Out { uint results[]; };

void main() {
    ivec3 g = ivec3(gl_GlobalInvocationID);
    int i = (g.z * 16 + g.y) * 16 + g.x;
    uint mixed = uint(i) * 0x9e3779b9u;
    uint sum = imageLoad(volume, g).x;
    imageStore(volume, g, uvec4(mixed));
    sum = sum * 31u + imageLoad(layers, ivec3(g.xy, g.z)).x;
    imageStore(layers, g, uvec4(mixed ^ 1u));
    if (g.z < 6) {
        sum = sum * 31u + imageLoad(cube, g).x;
        imageStore(cube, g, uvec4(mixed ^ 2u));
    }
    sum = sum * 31u + imageLoad(slice, g.xy).x;
    sum = sum * 31u + imageLoad(line, i).x;
    imageStore(line, i, uvec4(mixed ^ 4u));
    sum = sum * 31u + imageLoad(row, i & 63).z;
    uvec3 sizes = uvec3(imageSize(volume)) + uvec3(imageSize(layers)) * 3u + uvec3(imageSize(cube), 1) * 5u;
    results[2 * i] = sum;
    results[2 * i + 1] = sizes.x ^ sizes.y << 8 ^ sizes.z << 16 ^ uint(imageSize(line)) ^ uint(imageSize(row)) << 20;
}

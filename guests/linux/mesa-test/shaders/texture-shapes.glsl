#version 430
// Textures of all shapes, by place and level; their sizes and numbers of levels.
layout(local_size_x = 4, local_size_y = 4, local_size_z = 4) in;
layout(binding = 0) uniform usampler2D flat_one;
layout(binding = 1) uniform usampler3D volume;
layout(binding = 2) uniform usampler2DArray layers;
layout(binding = 3) uniform usamplerBuffer line;
layout(binding = 4) uniform usampler1D row;
layout(std430, binding = 0) writeonly buffer Out { uint results[]; };

void main() {
    ivec3 g = ivec3(gl_GlobalInvocationID);
    int i = (g.z * 16 + g.y) * 16 + g.x;
    int level = g.z & 3;
    uint sum = texelFetch(flat_one, g.xy >> level, level).x;
    sum = sum * 31u + texelFetch(volume, g >> (level & 1), level & 1).y;
    sum = sum * 31u + texelFetch(layers, ivec3(g.xy, g.z % 7), 0).z;
    sum = sum * 31u + texelFetch(line, i).w;
    sum = sum * 31u + texelFetch(row, i & 31, 0).x;
    sum = sum * 31u + texelFetchOffset(flat_one, g.xy >> 2, 1, ivec2(2, 1)).y;
    ivec3 size = textureSize(volume, level & 1) + textureSize(layers, 0) * 3 + ivec3(textureSize(flat_one, level), 1) * 5;
    results[2 * i] = sum;
    results[2 * i + 1] = uint(size.x ^ size.y << 8 ^ size.z << 16 ^ textureSize(line) << 4 ^ textureSize(row, 0) << 20)
        ^ uint(textureQueryLevels(flat_one)) << 28;
}

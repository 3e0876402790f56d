#version 430
// Samples of volumes, layers and cubes.
layout(local_size_x = 8, local_size_y = 8) in;
layout(binding = 0) uniform sampler3D volume;
layout(binding = 1) uniform sampler2DArray layers;
layout(binding = 2) uniform samplerCube cube;
layout(std430, binding = 0) writeonly buffer Out { vec4 results[]; };

void main() {
    ivec2 g = ivec2(gl_GlobalInvocationID.xy);
    int i = g.y * 32 + g.x;
    vec2 at = vec2(g) * 0.078125 - 1.0 + vec2(1.0, 3.0) / 512.0;
    results[3 * i] = textureLod(volume, vec3(at, at.x * 0.5 + 0.25), 0.0);
    results[3 * i + 1] = textureLod(layers, vec3(at, float(g.x & 3) + 0.25), 0.0);
    results[3 * i + 2] = textureLod(cube, vec3(at, 0.75 - float(g.x & 1)) + vec3(0.0078125), 0.0);
}

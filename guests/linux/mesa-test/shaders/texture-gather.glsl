#version 430
// Four texels at once, comparisons with a depth.
layout(local_size_x = 8, local_size_y = 8) in;
layout(binding = 0) uniform sampler2D given;
layout(binding = 1) uniform sampler2DShadow depths;
layout(std430, binding = 0) writeonly buffer Out { vec4 results[]; };

void main() {
    ivec2 g = ivec2(gl_GlobalInvocationID.xy);
    int i = g.y * 16 + g.x;
    vec2 at = (vec2(g) + vec2(0.25, 0.75)) / 16.0;
    results[3 * i] = textureGather(given, at, 1);
    results[3 * i + 1] = textureGatherOffset(given, at, ivec2(1, -2), 3);
    results[3 * i + 2] = vec4(textureLod(depths, vec3(at, 0.5), 0.0), textureGather(depths, at, 0.25).xyz);
}

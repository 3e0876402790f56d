#version 430
// Samples of a rectangle with filters and borders, at levels that are chosen.
layout(local_size_x = 8, local_size_y = 8) in;
layout(binding = 0) uniform sampler2D given;
layout(std430, binding = 0) writeonly buffer Out { vec4 results[]; };

void main() {
    ivec2 g = ivec2(gl_GlobalInvocationID.xy);
    int i = g.y * 32 + g.x;
    // From a texture's width left of it to half of one right of it, at multiples of 1/256 of a texel's size.
    vec2 at = vec2(g) * 0.078125 - 1.0 + vec2(1.0, 3.0) / 512.0;
    results[i] = textureLod(given, at, float(g.x % 5) * 0.25);
}

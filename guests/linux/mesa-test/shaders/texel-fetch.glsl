// Behind lines that define SAMPLER and TEXEL: texels by their place.
layout(local_size_x = 8, local_size_y = 8) in;
layout(binding = 0) uniform SAMPLER given;
layout(std430, binding = 0) writeonly buffer Out { TEXEL results[]; };

void main() {
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    int line = int(gl_NumWorkGroups.x * gl_WorkGroupSize.x);
    results[at.y * line + at.x] = texelFetch(given, at % textureSize(given, 0), 0);
}

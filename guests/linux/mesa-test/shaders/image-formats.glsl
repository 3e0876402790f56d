// Behind lines that define FORMAT, IMAGE, TEXEL and CHANGED(texel): loads a texel, stores another.
layout(local_size_x = 8, local_size_y = 8) in;
layout(FORMAT, binding = 0) readonly uniform IMAGE source;
layout(FORMAT, binding = 1) writeonly uniform IMAGE target;
layout(std430, binding = 0) writeonly buffer Out { TEXEL results[]; };

void main() {
    ivec2 at = ivec2(gl_GlobalInvocationID.xy);
    ivec2 size = imageSize(source);
    // Some invocations are outside: their loads give zero, and their stores do nothing.
    TEXEL texel = imageLoad(source, at);
    // What absent components of no texel are is not the same everywhere.
    if (any(greaterThanEqual(at, size)))
        texel *= TEXEL(1, 0, 0, 0);
    results[at.y * int(gl_NumWorkGroups.x * gl_WorkGroupSize.x) + at.x] = texel;
    imageStore(target, ivec2(size.x - 1 - at.x, at.y), CHANGED(texel));
}

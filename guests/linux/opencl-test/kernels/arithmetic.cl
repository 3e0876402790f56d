// Arithmetic; every operation has one right result.
#pragma OPENCL FP_CONTRACT OFF

kernel void integers(global const uint* given, global uint* results)
{
    size_t i = get_global_id(0);
    uint a = given[2 * i], b = given[2 * i + 1];
    int c = as_int(a), d = as_int(b);
    global uint* out = results + 16 * i;
    out[0] = a + b;
    out[1] = a * b;
    out[2] = mul_hi(a, b);
    out[3] = as_uint(mul_hi(c, d));
    out[4] = a / (b >> 12 | 1u);
    out[5] = a % (b >> 12 | 1u);
    out[6] = as_uint(c / (d >> 20 | 1));
    out[7] = rotate(a, b & 31u);
    out[8] = clz(a >> (b & 31u));
    out[9] = popcount(a ^ b);
    out[10] = add_sat(a, b);
    out[11] = as_uint(sub_sat(c, d));
    out[12] = hadd(a, b) ^ rhadd(a, b) << 1;
    out[13] = abs_diff(c, d);
    out[14] = as_uint(max(c, d)) - min(a, b);
    out[15] = as_uint(c >> (b & 31u)) ^ a << (b >> 8 & 31u);
}

kernel void long_integers(global const uint4* given, global ulong* results)
{
    size_t i = get_global_id(0);
    uint4 words = given[i];
    ulong a = (ulong)words.y << 32 | words.x, b = (ulong)words.w << 32 | words.z;
    global ulong* out = results + 8 * i;
    out[0] = a + b;
    out[1] = a - b;
    out[2] = a ^ b << 13;
    out[3] = a >> 7 | b << 57;
    out[4] = (ulong)((long)a >> 33);
    out[5] = a < b ? a : ~b;
    out[6] = (long)a < (long)b ? b & a : b | a;
    out[7] = (ulong)words.x * words.y;
}

kernel void floats(global const float* given, global uint* results)
{
    size_t i = get_global_id(0);
    float a = given[3 * i], b = given[3 * i + 1], c = given[3 * i + 2];
    global uint* out = results + 12 * i;
    out[0] = as_uint(a * b);
    out[1] = as_uint(a * 1.375f + b * 0.0625f);
    out[2] = as_uint(fma(a, b, c));
    out[3] = as_uint(fmin(a, fmax(b, c)));
    out[4] = as_uint(floor(a * 0.37f)) + as_uint(ceil(b * 0.37f));
    out[5] = as_uint(trunc(c * 0.11f)) ^ as_uint(rint(a * 0.5f));
    out[6] = convert_int_rte(a * 0.25f);
    out[7] = convert_uint_sat(b * 4000000.0f);
    out[8] = as_uint(convert_float(as_int(a) ^ as_int(c)));
    out[9] = (a < b) | (a <= c) << 1 | isless(b, c) << 2 | isgreaterequal(a, b) << 3 | signbit(c) << 4;
    out[10] = as_uint(fabs(copysign(a, b)) - c);
    out[11] = as_uint(clamp(a, -100.0f, 100.0f));
}

kernel void vectors(global const uint4* given, global uint4* results)
{
    size_t i = get_global_id(0);
    uint4 a = given[i];
    results[2 * i] = a.wzyx * 3u + rotate(a, (uint4)(1, 2, 3, 4));
    results[2 * i + 1] = select(a, a.yxwz, a > a.zwxy) ^ (uint4)(a.lo >> 3, a.odd);
}

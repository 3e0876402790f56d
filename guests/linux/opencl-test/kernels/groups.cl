// Groups that work together.

kernel void reduction(global const uint* given, global uint* sums, global uint* scan, local uint* part)
{
    uint i = get_local_id(0), size = get_local_size(0);
    uint word = given[get_global_id(0)];
    part[i] = word;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (uint step = 1; step < size; step <<= 1) {
        uint before = i >= step ? part[i - step] : 0u;
        barrier(CLK_LOCAL_MEM_FENCE);
        part[i] += before;
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    scan[get_global_id(0)] = part[i] - word;
    if (i == size - 1)
        sums[get_group_id(0)] = part[i];
}

kernel void multiplication(global const float* left, global const float* right, global float* product, uint side)
{
    local float a[16][16], b[16][16];
    uint x = get_local_id(0), y = get_local_id(1);
    uint column = get_global_id(0), row = get_global_id(1);
    float sum = 0.0f;
    for (uint from = 0; from < side; from += 16) {
        a[y][x] = left[row * side + from + x];
        b[y][x] = right[(from + y) * side + column];
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint k = 0; k < 16; k++)
            sum = fma(a[y][k], b[k][x], sum);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    product[row * side + column] = sum;
}

kernel void histogram(global const uint* given, global uint* bins, local uint* part)
{
    uint i = get_local_id(0);
    if (i < 64)
        part[i] = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
    atomic_inc(&part[given[get_global_id(0)] >> 26]);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i < 64)
        atomic_add(&bins[i], part[i]);
}

kernel void atomics(global const uint* given, volatile global uint* results, global uint* tickets)
{
    uint word = given[get_global_id(0)];
    atomic_add(&results[0], word);
    atomic_min(&results[1], word);
    atomic_max(&results[2], word);
    atomic_and(&results[3], word | 0xfffu);
    atomic_or(&results[4], word & 0xf0f0f0u);
    atomic_xor(&results[5], word);
    // Who gets which number is open, but all numbers are drawn once.
    tickets[atomic_inc(&results[6])] = 1;
    uint old = results[7];
    while (true) {
        uint seen = atomic_cmpxchg(&results[7], old, old + (word & 0xffu));
        if (seen == old)
            break;
        old = seen;
    }
}

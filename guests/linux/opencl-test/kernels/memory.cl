// Ways through memory.

kernel void loops(global const uint* given, global uint* results, uint most)
{
    size_t i = get_global_id(0);
    uint n = given[i] >> 16 | 1u, steps = 0;
    while (n != 1 && steps < most) {
        n = n & 1u ? 3 * n + 1 : n >> 1;
        if (n > 0x100000u)
            continue;
        steps++;
    }
    results[i] = steps << 20 ^ n;
}

kernel void byte_memory(global const uchar* given, global uchar* turned, global ushort* pairs)
{
    size_t i = get_global_id(0);
    uchar low = given[2 * i], high = given[2 * i + 1];
    turned[2 * i] = high;
    turned[2 * i + 1] = rotate(low, (uchar)3);
    pairs[i] = (ushort)(low * high);
}

kernel void private_memory(global const uint* given, global uint* results)
{
    size_t i = get_global_id(0);
    uint list[16];
    for (uint k = 0; k < 16; k++)
        list[k] = given[i] * (k * 2 + 1) >> 7;
    // Sorted by places that only the run knows.
    for (uint k = 1; k < 16; k++)
        for (uint at = k; at > 0 && list[at - 1] > list[at]; at--) {
            uint other = list[at];
            list[at] = list[at - 1];
            list[at - 1] = other;
        }
    results[i] = list[given[i] & 15u] + list[15] * 3;
}

kernel void life(global const uint* cells, global uint* next)
{
    int x = get_global_id(0), y = get_global_id(1);
    int width = get_global_size(0), height = get_global_size(1);
    uint count = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            if (dx != 0 || dy != 0)
                count += cells[((y + dy + height) % height) * width + (x + dx + width) % width];
    uint cell = cells[y * width + x];
    next[y * width + x] = count == 3 || (cell == 1 && count == 2);
}

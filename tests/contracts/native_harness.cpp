// The native engine without Python: an encoder of random weights and a batch of random ids, whose states are printed.
// Arguments: the precision, the instructions that products may use, the threads. Exit status 3: products are wrong.

#include ENGINE

#include <cstdio>

namespace {

std::vector<std::vector<float>> arrays;
uint32_t drawn = 1;

const float* numbers(size_t count, float around, float scale) {
    arrays.emplace_back(count);
    for (float& x : arrays.back()) {
        drawn = drawn * 1664525u + 1013904223u;
        x = around + scale * ((float)(drawn >> 8) / (1 << 24) - 0.5f);
    }
    return arrays.back().data();
}

NativeLinear linear_of(int rows, int columns) {
    return {rows, columns, numbers((size_t)rows * columns, 0, 2 / std::sqrt((float)columns)), numbers(rows, 0, 1)};
}

NativeNorm norm_of(int width) { return {1, 1e-5f, numbers(width, 1, 0.5f), numbers(width, 0, 0.5f)}; }

}  // namespace

int main(int, char** arguments) {
    const int precision = atoi(arguments[1]), instructions = atoi(arguments[2]), threads = atoi(arguments[3]);
    if (native_connect(instructions) != 7) return 3;
    constexpr int WIDTH = 72, HEADS = 3, HEAD = 24, INNER = 100, WORDS = 50, LAYERS = 2, ROWS = 12, REACH = 512;
    NativeLayer layers[LAYERS];
    NativeWeights weights[LAYERS];
    for (int i = 0; i < LAYERS; i++) {
        // The first layer is gated, before its norms, with rotations and a window; the second has distances by content.
        layers[i] = {i, !i, !i, GELU, HEADS, HEADS, HEAD, i ? -1 : 0, i ? 0 : -1, i ? 3 : 1};
        weights[i] = {linear_of(3 * WIDTH, WIDTH), linear_of(WIDTH, WIDTH), linear_of(i ? INNER : 2 * INNER, WIDTH),
                      linear_of(WIDTH, INNER),     norm_of(WIDTH),          norm_of(WIDTH),
                      nullptr,                     nullptr,                 0};
        if (i) {
            weights[i].distance_keys = numbers(ROWS * WIDTH, 0, 1);
            weights[i].distance_queries = numbers(ROWS * WIDTH, 0, 1);
            weights[i].distance_rows = ROWS;
        }
    }
    NativeEmbedding embedding{WORDS, 8, 0, 0, 0, numbers(WORDS * 8, 0, 2), nullptr, nullptr, norm_of(WIDTH),
                              linear_of(WIDTH, 8), 1};
    NativeEncoder encoder{precision, WIDTH, LAYERS, LAYERS, layers, weights, embedding, norm_of(WIDTH)};
    void* native = native_new(&encoder);
    for (int i = 0; i < LAYERS; i++)
        if (native_weights(native, i, &weights[i], layers[i].gated)) return 4;
    const int lengths[] = {1, 5, 260, 17, 96, 33};
    std::vector<int64_t> offsets{0}, ids;
    for (int length : lengths) offsets.push_back(offsets.back() + length);
    for (int64_t i = 0; i < offsets.back(); i++) ids.push_back(i * 7 % WORDS);
    std::vector<float> cosines, sines;
    for (int place = 0; place < REACH; place++)
        for (int pair = 0; pair < HEAD / 2; pair++) {
            cosines.push_back((float)std::cos(place / std::pow(100.0, pair / 12.0)));
            sines.push_back((float)std::sin(place / std::pow(100.0, pair / 12.0)));
        }
    std::vector<int32_t> rows;
    for (int at = 1 - REACH; at < REACH; at++) rows.push_back(std::min(ROWS - 1, std::max(0, ROWS / 2 - at / 3)));
    const NativeTable rotation{cosines.data(), sines.data(), HEAD / 2, 0};
    const NativeTable distances{rows.data(), nullptr, 2 * REACH - 1, REACH - 1};
    const int32_t radius[LAYERS] = {40, -1};
    std::vector<float> states(ids.size() * WIDTH);
    const NativeRun run{ids.data(), nullptr,    offsets.data(), (int64_t)offsets.size() - 1, radius, &rotation,
                        &distances, states.data(), threads,     nullptr};
    if (native_run(native, &run)) return fprintf(stderr, "%s\n", native_error()), 5;
    native_free(native);
    for (float x : states) printf("%.9g\n", x);
}

// The native engine without Python: encoders of random weights and batches of random ids.
// Arguments: the instructions that products may use; and for the states of one batch, which are printed, the precision,
// the threads and the shape. Without those, many threads use many encoders, and all states must have the bits of one
// thread alone. Exit status 3: products are wrong.

#include ENGINE

#include <cstdio>
// The sanitizers of addresses and threads leave locks of their own held in a child.
#if !defined _WIN32 && !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
#define FORKS
#include <sys/wait.h>
#include <unistd.h>
#endif

namespace {

enum Terms { NO_TERMS, BY_DISTANCE, BY_CONTENT };

struct Shape {
    int width, heads, shared, head, inner, activation, embedded;  // the width of the tables; another one is projected
    bool gated, norm_first;
    int norm;    // kind
    int rotated; // pairs of a head
    int radius;
    Terms terms;
    bool keys, queries;  // of disentangled positions
};

// An encoder is two layers, of neighbors in this list.
constexpr Shape SHAPES[][2] = {
    {{72, 3, 3, 24, 100, GELU, 8, true, true, 1, 12, 40, NO_TERMS, false, false},
     {72, 3, 3, 24, 100, GELU, 8, false, false, 1, 0, -1, BY_CONTENT, true, true}},
    {{33, 3, 1, 11, 45, TANH, 33, false, true, 2, 4, -2, BY_DISTANCE, false, false},
     {33, 2, 2, 17, 7, SILU, 33, true, false, 2, 0, 3, BY_CONTENT, true, false}},
    {{130, 2, 1, 64, 259, GELU_TANH, 130, true, false, 1, 32, 200, BY_DISTANCE, false, false},
     {130, 5, 5, 26, 64, RELU, 130, false, true, 1, 0, -1, BY_CONTENT, false, true}},
};
constexpr int WORDS = 50, SEGMENTS = 3, ROWS = 12, REACH = 1024, LAYERS = 2;
const std::vector<int> MIXED{1, 5, 260, 17, 96, 33}, QUERY{11}, LONG{700, 3},
    MANY{40, 1, 64, 65, 120, 9, 31, 33, 200, 2, 77, 15, 16, 48, 90, 25, 130, 60, 5, 80};

struct Example {
    std::vector<std::unique_ptr<float[]>> arrays;  // of exact sizes, so that what reads behind them is seen
    std::vector<int32_t> rows, radii;
    std::vector<NativeTable> rotations, distances;
    NativeLayer layers[LAYERS];
    NativeWeights weights[LAYERS];
    uint32_t drawn = 1;
    void* native = nullptr;
    int width = 0;
    bool segments = false;

    const float* numbers(size_t count, float around, float scale) {
        arrays.emplace_back(new float[count]);
        for (size_t i = 0; i < count; i++) {
            drawn = drawn * 1664525u + 1013904223u;
            arrays.back()[i] = around + scale * ((float)(drawn >> 8) / (1 << 24) - 0.5f);
        }
        return arrays.back().get();
    }
    const float* table(int count, bool halves) {
        const float* whole = numbers((size_t)count, 0, 2);
        if (!halves) return whole;
        float* stored = new float[(count + 1) / 2];
        arrays.emplace_back(stored);
        for (int i = 0; i < count; i++) ((uint16_t*)stored)[i] = to_bfloat16(whole[i]);
        return stored;
    }
    NativeLinear linear_of(int n, int k) {
        return {n, k, numbers((size_t)n * k, 0, 2 / std::sqrt((float)k)), numbers(n, 0, 1)};
    }
    NativeNorm norm_of(int kind, int n) {
        return {kind, 1e-5f, numbers(n, 1, 0.5f), kind == 1 ? numbers(n, 0, 0.5f) : nullptr};
    }

    Example(int precision, int number) {
        const Shape* shapes = SHAPES[number];
        width = shapes[0].width, segments = number > 0;
        for (int at = 1 - REACH; at < REACH; at++) rows.push_back(std::min(ROWS - 1, std::max(0, ROWS / 2 - at / 3)));
        for (int i = 0; i < LAYERS; i++) add_layer(i, shapes[i]);
        const int e = shapes[0].embedded;
        const bool projected = e != width, halves = precision == BFLOAT16 && segments;
        const float* words = table(WORDS * e, halves);
        const float* places = segments ? table((REACH + 2) * e, halves) : nullptr;
        const float* types = segments ? table(SEGMENTS * e, halves) : nullptr;
        NativeEmbedding embedding{WORDS, e, segments ? 2 : 0, segments ? SEGMENTS : 0, halves, words, places, types, 1,
                                  norm_of(1, width), projected ? linear_of(width, e) : NativeLinear{}, projected};
        NativeEncoder encoder{precision, width, LAYERS, LAYERS, layers, weights, embedding, norm_of(1, width)};
        native = native_new(&encoder);
        for (int i = 0; i < LAYERS; i++)
            if (native_weights(native, i, &weights[i], layers[i].gated)) fail(native_error());
    }
    Example(const Example&) = delete;
    ~Example() { native_free(native); }

    void add_layer(int i, const Shape& s) {
        const bool by_content = s.terms == BY_CONTENT;
        layers[i] = {i,        s.norm_first, s.gated, s.activation, s.heads,
                     s.shared, s.head,       s.rotated ? (int)rotations.size() : -1,
                     s.terms ? (int)distances.size() : -1, 1 + (by_content && s.keys) + (by_content && s.queries), 0, 0};
        weights[i] = {linear_of((s.heads + 2 * s.shared) * s.head, width),
                      linear_of(width, s.heads * s.head),
                      linear_of(s.gated ? 2 * s.inner : s.inner, width),
                      linear_of(width, s.inner),
                      norm_of(s.norm, width),
                      norm_of(s.norm, width),
                      {}, {}, {}, {},
                      s.keys ? numbers(ROWS * s.heads * s.head, 0, 1) : nullptr,
                      s.queries ? numbers(ROWS * s.heads * s.head, 0, 1) : nullptr,
                      by_content ? ROWS : 0};
        radii.push_back(s.radius);
        if (s.rotated) {
            float *cosines = new float[REACH * s.rotated], *sines = new float[REACH * s.rotated];
            arrays.emplace_back(cosines), arrays.emplace_back(sines);
            for (int at = 0; at < REACH * s.rotated; at++) {
                const double angle = at / s.rotated / std::pow(100.0, at % s.rotated / (double)s.rotated);
                cosines[at] = (float)std::cos(angle), sines[at] = (float)std::sin(angle);
            }
            rotations.push_back({cosines, sines, s.rotated, 0});
        }
        if (s.terms)
            distances.push_back({by_content ? (const void*)rows.data() : numbers(s.heads * (2 * REACH - 1), 0, 1), nullptr,
                                 2 * REACH - 1, REACH - 1});
    }

    static void fail(const char* why) {
        fprintf(stderr, "%s\n", why);
        exit(5);
    }

    std::vector<float> run(const std::vector<int>& lengths, int threads) const {
        std::vector<int64_t> offsets{0}, ids, types;
        for (int length : lengths) offsets.push_back(offsets.back() + length);
        for (int64_t i = 0; i < offsets.back(); i++) ids.push_back(i * 7 % WORDS), types.push_back(i % SEGMENTS);
        std::vector<float> states(ids.size() * width);
        const NativeRun run{ids.data(), segments ? types.data() : nullptr, offsets.data(), (int64_t)lengths.size(),
                            radii.data(), rotations.data(), distances.data(), states.data(), threads, nullptr};
        if (native_run(native, &run)) fail(native_error());
        return states;
    }
};

int differing = 0;
std::mutex counting;

// Batches of one encoder, or of new ones, by several threads, against their states by one thread alone.
void many_threads(int precision, int number) {
    std::unique_ptr<Example> kept(new Example(precision, number));
    const std::vector<int> batches[] = {MIXED, QUERY, LONG, MANY};
    std::vector<std::vector<float>> alone;
    for (const auto& lengths : batches) alone.push_back(Example(precision, number).run(lengths, 1));
    auto work = [&](int which) {
        for (int turn = 0; turn < 4; turn++) {
            const int batch = (turn + which) % 4, threads = 1 + (turn + which) % 5;
            const std::vector<float> states = which ? kept->run(batches[batch], threads)
                                                    : Example(precision, number).run(batches[batch], threads);
            std::lock_guard<std::mutex> held(counting);
            differing += states != alone[batch];
        }
    };
    std::vector<std::thread> workers;
    for (int which = 0; which < 4; which++) workers.emplace_back(work, which);
#ifdef FORKS
    for (int fork_number = 0; fork_number < 3; fork_number++) {
        const pid_t child = fork();
        if (!child) _exit(kept->run(MIXED, 3) != alone[0] || kept->run(QUERY, 2) != alone[1]);
        int status = 0;
        waitpid(child, &status, 0);
        std::lock_guard<std::mutex> held(counting);
        differing += !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
#endif
    for (std::thread& worker : workers) worker.join();
    kept.reset();  // helpers may still be on their way out
}

}  // namespace

int main(int count, char** arguments) {
    const int instructions = atoi(arguments[1]);
    if (count == 5) {
        if (native_connect(instructions) != 7) return 3;
        for (float x : Example(atoi(arguments[2]), atoi(arguments[4])).run(MIXED, atoi(arguments[3])))
            printf("%.9g\n", x);
        return 0;
    }
    std::vector<std::thread> first;
    std::atomic<int> proved{7};
    for (int i = 0; i < 3; i++) first.emplace_back([&] { proved &= native_connect(instructions); });
    for (std::thread& one : first) one.join();
    if (proved != 7) return 3;
    for (int precision = FLOAT32; precision <= INT8; precision++)
        for (int number = 0; number < (int)(sizeof SHAPES / sizeof *SHAPES); number++) many_threads(precision, number);
    printf("%d differ\n", differing);
    return differing ? 6 : 0;
}

// The layers of an encoder for inference on a CPU, over packed sequences.
//
// Matrix products are micro-kernels: a tile of the result stays in registers while it is summed, by the instructions
// for sums of products that the processor has, or by multiplications; `native_connect` chooses.
// Everything else is loops over vectors of floats, written with the vector extensions of GCC and Clang, so that one
// source serves every instruction set. States are float32 between products in every precision.
//
// Work is blocks of rows (tokens). A block runs through a whole layer: attention over the queries, keys and values
// of the layer, the output projection, the feed-forward network, and the queries, keys and values of the next layer.
// So threads meet once per layer. Many short sequences are cut into chunks, and a thread takes a chunk from the ids
// to the last layer without meeting any other.
//
// No compiler flag may reorder floating-point operations: a NaN has to reach the result.

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifdef _WIN32
#define EXPORT __declspec(dllexport)
#else
#include <pthread.h>
#include <sys/mman.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#define EXPORT __attribute__((visibility("default")))
#endif

#if defined __x86_64__
#include <cpuid.h>
#include <immintrin.h>
#define ANY_PROCESSOR __attribute__((target("arch=x86-64")))
#else
#define ANY_PROCESSOR
#if defined __APPLE__
#include <sys/sysctl.h>
#elif defined __linux__
#include <sys/auxv.h>
#endif
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

namespace {

// --- the platform ----------------------------------------------------------------------------------------------

// Large buffers lie in huge pages where the system has them and gives them to who asks.
constexpr size_t HUGE_PAGE = size_t(2) << 20;

inline void ask_for_huge_pages(void* at, size_t bytes) {
#ifdef MADV_HUGEPAGE
    madvise(at, bytes, MADV_HUGEPAGE);
#else
    (void)at, (void)bytes;
#endif
}

// Whether functions will be called around each fork; Windows has none.
inline bool at_fork(void (*before)(), void (*in_parent)(), void (*in_child)()) {
#ifdef _WIN32
    return before && in_parent && in_child;
#else
    return !pthread_atfork(before, in_parent, in_child);
#endif
}

// A turn of waiting for another thread.
inline void relax(int& turns) {
    if (++turns >= 2000)
        std::this_thread::yield();
#if defined __x86_64__
    else
        __builtin_ia32_pause();
#elif defined __aarch64__
    else
        asm volatile("yield");
#endif
}

#ifdef __AVX512F__
// Whether this process may use the tiles of AMX, whose state the system keeps only for those that have asked.
ANY_PROCESSOR bool may_use_tiles() {
#ifdef __linux__
    constexpr long REQUEST_STATE = 0x1023, TILE_DATA = 18;
    return !syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA);
#else
    return false;
#endif
}
#endif

// Instructions for sums of products that this processor has, as `native_connect` takes them; -1 if it lacks those that
// this file is compiled for. So nothing here, or before it is called, may use them.
ANY_PROCESSOR int instructions_here() {
#if defined __AVX2__
    uint32_t a, b, c, d, features, extended, vectors, dots, tiles;
    __cpuid(0, a, b, c, d);
    if (a < 7) return -1;
    __cpuid(1, a, b, features, d);
    if (~features & (1u << 12 | 1u << 27 | 1u << 29)) return -1;  // FMA, XGETBV, F16C
    asm("xgetbv" : "=a"(vectors), "=d"(d) : "c"(0));              // registers that the system keeps
    __cpuid_count(7, 0, a, extended, dots, tiles);
    if (~extended & (1u << 5 | 1u << 8) || ~vectors & 0x6) return -1;  // AVX2, BMI2
    uint32_t more = 0;
    if (a >= 1) __cpuid_count(7, 1, more, b, c, d);
#ifdef __AVX512F__
    if (~extended & (1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31) || ~vectors & 0xe6) return -1;
    const bool amx = !(~tiles & (1u << 22 | 1u << 24 | 1u << 25) || ~vectors & 0x60000) && may_use_tiles();
    return (dots >> 11 & 1) | (more >> 5 & 1) << 1 | amx << 2;  // AVX-512 VNNI, BF16; AMX tiles of both
#else
    return more >> 4 & 1;  // AVX-VNNI
#endif
#elif defined __aarch64__ && defined __APPLE__
    int dots = 0, halves = 0;
    size_t size = sizeof dots;
    sysctlbyname("hw.optional.arm.FEAT_DotProd", &dots, &size, nullptr, 0);
    size = sizeof halves;
    sysctlbyname("hw.optional.arm.FEAT_BF16", &halves, &size, nullptr, 0);
    return (dots ? 1 : 0) | (halves ? 2 : 0);
#elif defined __aarch64__ && defined __linux__
    return (getauxval(AT_HWCAP) >> 20 & 1) | (getauxval(AT_HWCAP2) >> 14 & 1) << 1;  // ASIMDDP, BF16
#else
    return 0;
#endif
}

// --- vectors ---------------------------------------------------------------------------------------------------

// A vector is one register: compilers lower longer vectors through memory.
#if defined __AVX512F__
constexpr int LANES = 16;
#elif defined __AVX2__
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Floats __attribute__((vector_size(LANES * 4)));
typedef int32_t Ints __attribute__((vector_size(LANES * 4)));
typedef uint32_t Bits __attribute__((vector_size(LANES * 4)));
typedef uint16_t Halves __attribute__((vector_size(LANES * 2)));
typedef uint8_t Bytes __attribute__((vector_size(LANES)));

template <class To, class From>
inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

template <class Vector>
inline Vector vector_at(const void* from) {
    Vector x;
    memcpy(&x, from, sizeof x);
    return x;
}

inline Floats load(const float* from) { return vector_at<Floats>(from); }

inline void store(float* to, Floats x) { memcpy(to, &x, sizeof x); }

inline Floats all(float x) { return x - Floats{}; }

#if defined __AVX512F__
constexpr Ints COUNT = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined __AVX2__
constexpr Ints COUNT = {0, 1, 2, 3, 4, 5, 6, 7};
#else
constexpr Ints COUNT = {0, 1, 2, 3};
#endif

// Lanes first <= i < end keep x, the others become `other`.
inline Floats only(Floats x, int first, int end, float other) {
    return ((COUNT >= first) & (COUNT < end)) ? x : all(other);
}

// Numbers at places of an array.
inline Floats gathered(const float* from, Ints at) {
#if defined __AVX512F__
    return _mm512_mask_i32gather_ps(__m512{}, 0xffff, (__m512i)at, from, 4);  // GCC 12 warns of the one without a mask
#elif defined __AVX2__
    return _mm256_i32gather_ps(from, (__m256i)at, 4);
#else
    Floats x;
    for (int i = 0; i < LANES; i++) x[i] = from[at[i]];
    return x;
#endif
}

// Both keep a NaN of x.
inline Floats at_least(Floats x, float low) { return x < low ? all(low) : x; }
inline Floats at_most(Floats x, float high) { return x > high ? all(high) : x; }

// Drops NaN.
inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

inline Floats magnitude(Floats x) { return same_bits<Floats>(same_bits<Bits>(x) & 0x7fffffffu); }

inline float sum(Floats x) {
    float a[LANES];
    memcpy(a, &x, sizeof a);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) a[i] += a[i + width];
    return a[0];
}

inline float largest(Floats x) {
    float a[LANES];
    memcpy(a, &x, sizeof a);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
    return a[0];
}

// Adding it rounds to a whole number, which the lowest bits then hold.
constexpr float ROUNDER = 12582912.0f;  // 1.5 * 2^23

// exp for x of at most 88, of which less than -87 counts as -87: a relative error of 2e-7, or of 4e-6 with fewer terms.
// NaN stays NaN.
template <bool EXACT = true>
inline Floats exponential(Floats x) {
    x = at_least(x, -87.0f);
    Floats shifted = x * 1.44269504f + ROUNDER;
    Floats n = shifted - ROUNDER;
    Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = EXACT ? r * (1.0f / 720) + 1.0f / 120 : all(1.0f / 120);
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    Bits power = (same_bits<Bits>(shifted) << 23) + 0x3f800000u;
    return p * same_bits<Floats>(power);
}

inline uint16_t to_bfloat16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline Halves to_bfloat16(Floats x) {
    Bits bits = same_bits<Bits>(x);
    return __builtin_convertvector((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16, Halves);
}

inline Floats from_bfloat16(const uint16_t* from) {
    return same_bits<Floats>(__builtin_convertvector(vector_at<Halves>(from), Bits) << 16);
}

// --- activations -----------------------------------------------------------------------------------------------

enum Activation { NONE = 0, GELU = 1, GELU_TANH = 2, RELU = 3, SILU = 4, TANH = 5 };

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(at_most(-x, 88.0f))); }

// x (1 + erf(x / sqrt 2)) / 2 with an absolute error of 1.5e-7 in erf (Abramowitz & Stegun 7.1.26).
inline Floats gelu_exact(Floats x) {
    Floats z = magnitude(x) * 0.70710678f;
    Floats t = 1.0f / (1.0f + 0.3275911f * z);
    Floats p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = (p * t + 0.254829592f) * t;
    Floats tail = 0.5f * p * exponential(-z * z);  // 1 - Phi(|x|)
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

// The same with an absolute error of 8e-5, for results that are rounded to 8 bits afterwards: an odd polynomial for
// Phi(x) - 1/2, least squares at Chebyshev nodes up to 4.2.
inline Floats gelu_rounded(Floats x) {
    constexpr float C[9] = {4.923794756e-11f, -4.795643610e-09f, 2.072470585e-07f, -5.289555052e-06f, 8.983585529e-05f,
                            -1.086458554e-03f, 9.740938946e-03f, -6.622207538e-02f, 3.988345781e-01f};
    Floats near = at_most(at_least(x, -4.2f), 4.2f);
    Floats square = near * near;
    Floats p = all(C[0]);
    for (int i = 1; i < 9; i++) p = p * square + C[i];
    return x * (p * near + 0.5f);
}

template <bool EXACT>
inline Floats activate(Floats x, int activation) {
    switch (activation) {
        case GELU:
            return EXACT ? gelu_exact(x) : gelu_rounded(x);
        case GELU_TANH:
            return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
        case RELU:
            return at_least(x, 0.0f);
        case SILU:
            return x * sigmoid(x);
        case TANH:
            return 2.0f * sigmoid(2.0f * x) - 1.0f;
        default:
            return x;
    }
}

// --- products --------------------------------------------------------------------------------------------------

enum Precision { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2 };

// A kind of products: the types of both factors and of sums, how many features of a column lie together, and how a sum
// takes the features of a row that lie together, and those of a vector of columns.
struct ByFloats {
    typedef float Left, Right, Sum;
    typedef Floats Sums, Row, Columns;
    static constexpr int TOGETHER = 1, WIDE = LANES == 8 ? 2 : 4;
    static Row row(const float* from) { return all(*from); }
    static Columns columns(const float* from) { return load(from); }
    static Sums plus(Sums sums, Row row, Columns columns) { return sums + row * columns; }
};

inline uint32_t word(const void* from) {
    uint32_t bits;
    memcpy(&bits, from, 4);
    return bits;
}

// bfloat16 as the upper halves of floats.
struct ByHalves {
    typedef uint16_t Left, Right;
    typedef float Sum;
    typedef Floats Sums;
    struct Pair {
        Floats even, odd;
    };
    typedef Pair Row, Columns;
    static constexpr int TOGETHER = 2, WIDE = LANES == 8 ? 1 : 2;
    static Pair pair(Bits bits) { return {same_bits<Floats>(bits << 16), same_bits<Floats>(bits & 0xffff0000u)}; }
    static Row row(const uint16_t* from) { return pair(word(from) - Bits{}); }
    static Columns columns(const uint16_t* from) { return pair(vector_at<Bits>(from)); }
    static Sums plus(Sums sums, Row row, Columns columns) {
        return sums + row.even * columns.even + row.odd * columns.odd;
    }
};

// What is added to an activation's byte. Processors of x86 multiply unsigned by signed bytes, those of Arm signed ones.
#ifdef __aarch64__
constexpr int BYTE_OFFSET = 0;
typedef int8_t LeftByte;
#else
constexpr int BYTE_OFFSET = 128;
typedef uint8_t LeftByte;
#endif

struct ByBytes {
    typedef LeftByte Left;
    typedef int8_t Right;
    typedef int32_t Sum;
    typedef Ints Sums;
    static constexpr int TOGETHER = 4;
#ifdef __AVX2__
    // As pairs of 16 bits, of which none saturates. The compiler splits longer vectors.
    typedef int16_t Shorts __attribute__((vector_size(LANES * 4)));
    struct Row {
        Shorts even, odd;
    };
    typedef Row Columns;
    static constexpr int WIDE = 1;
    static Row row(const Left* from) {
        const Bits bits = word(from) - Bits{};
        return {same_bits<Shorts>(bits & 0x00ff00ffu), same_bits<Shorts>(bits >> 8 & 0x00ff00ffu)};
    }
    static Columns columns(const int8_t* from) {
        const Shorts both = vector_at<Shorts>(from);
        return {(both << 8) >> 8, both >> 8};
    }
    static Sums plus(Sums sums, Row row, Columns columns) {
        return sums + pairs(row.even, columns.even) + pairs(row.odd, columns.odd);
    }
#ifdef __AVX512BW__
    static Ints pairs(Shorts a, Shorts b) { return (Ints)_mm512_madd_epi16((__m512i)a, (__m512i)b); }
#else
    static Ints pairs(Shorts a, Shorts b) { return (Ints)_mm256_madd_epi16((__m256i)a, (__m256i)b); }
#endif
#else
    typedef const Left* Row;
    typedef Ints Columns;
    static constexpr int WIDE = 2;
    static Row row(const Left* from) { return from; }
    static Columns columns(const int8_t* from) { return vector_at<Ints>(from); }
    static Sums plus(Sums sums, Row row, Columns columns) {
        for (int i = 0; i < 4; i++)
            sums += (columns << (24 - 8 * i) >> 24) * (int32_t)row[i];
        return sums;
    }
#endif
};

// The same by an instruction, which sums the features that lie together. Assembly, because GCC 12 copies the sums of
// intrinsics to memory.
#if defined __AVX512F__
#define DOTS(name, sums, row, columns) asm(name " %2, %1, %0" : "+v"(sums) : "v"(row), "v"(columns))
#define DOTS_OF_BYTES "vpdpbusd"
#define DOTS_OF_HALVES "vdpbf16ps"
#elif defined __AVX2__
#define DOTS(name, sums, row, columns) asm("%{vex%} " name " %2, %1, %0" : "+x"(sums) : "x"(row), "x"(columns))
#define DOTS_OF_BYTES "vpdpbusd"
#elif defined __aarch64__
#define DOTS(name, sums, row, columns) asm(name : "+w"(sums) : "w"(row), "w"(columns))
#define DOTS_OF_BYTES ".arch armv8.6-a\n sdot %0.4s, %1.16b, %2.16b"
#define DOTS_OF_HALVES ".arch armv8.6-a\n bfdot %0.4s, %1.8h, %2.8h"
#endif
#ifdef DOTS_OF_BYTES
struct ByDotsOfBytes {
    typedef LeftByte Left;
    typedef int8_t Right;
    typedef int32_t Sum;
    typedef Ints Sums, Row, Columns;
    static constexpr int TOGETHER = 4, WIDE = ByFloats::WIDE;
    static Row row(const Left* from) { return (int32_t)word(from) - Ints{}; }
    static Columns columns(const int8_t* from) { return vector_at<Ints>(from); }
    static Sums plus(Sums sums, Row row, Columns columns) {
        DOTS(DOTS_OF_BYTES, sums, row, columns);
        return sums;
    }
};
#endif
#ifdef DOTS_OF_HALVES
struct ByDotsOfHalves {
    typedef uint16_t Left, Right;
    typedef float Sum;
    typedef Floats Sums;
    typedef Bits Row, Columns;
    static constexpr int TOGETHER = 2, WIDE = ByFloats::WIDE;
    static Row row(const uint16_t* from) { return word(from) - Bits{}; }
    static Columns columns(const uint16_t* from) { return vector_at<Bits>(from); }
    static Sums plus(Sums sums, Row row, Columns columns) {
        DOTS(DOTS_OF_HALVES, sums, row, columns);
        return sums;
    }
};
#endif

typedef int64_t Size;
constexpr int TILE_ROWS = 6;
// Bytes of a column of the right factor that stay in the cache: the second one, or for a few rows, which read weights at
// the speed of memory, the first, so that every strip of a slice is read before the next.
constexpr Size SLICE = 3072, FEW_SLICE = LANES == 16 ? SLICE : 256, FEW = 12;
// Rows of the right factor that are fetched ahead of their use: what a processor fetches by itself ends with a page.
constexpr Size AHEAD = 16;

// R rows and V vectors of columns of a product, summed in registers, feature after feature, so that the bits of a row
// depend on no other row.
template <class Kind, int R, int V>
inline void tile(Size k, Size lda, Size ldb, Size ldc, bool add, const typename Kind::Left* a,
                 const typename Kind::Right* b, typename Kind::Sum* c) {
    typedef typename Kind::Sums Sums;
    Sums sums[R][V];
    // Loops are unrolled so that sums are registers before, in and after the longest.
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) sums[r][v] = Sums{};
    if (add)
#pragma GCC unroll 6
        for (int r = 0; r < R; r++)
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) sums[r][v] = vector_at<Sums>(c + r * ldc + v * LANES);
    for (Size i = 0; i < k; i += Kind::TOGETHER, b += ldb * Kind::TOGETHER) {
        typename Kind::Columns columns[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) __builtin_prefetch(b + (AHEAD * ldb + v * LANES) * Kind::TOGETHER);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) columns[v] = Kind::columns(b + v * LANES * Kind::TOGETHER);
#pragma GCC unroll 6
        for (int r = 0; r < R; r++) {
            const typename Kind::Row row = Kind::row(a + r * lda + i);
#pragma GCC unroll 4
            for (int v = 0; v < V; v++) sums[r][v] = Kind::plus(sums[r][v], row, columns[v]);
        }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; r++)
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            const Sums sum = sums[r][v];
            memcpy(c + r * ldc + v * LANES, &sum, sizeof sum);
        }
}

// Some vectors of columns, tile after tile of nearly as many rows.
template <class Kind, int V>
void strip(Size m, Size k, Size lda, Size ldb, Size ldc, bool add, const typename Kind::Left* a,
           const typename Kind::Right* b, typename Kind::Sum* c) {
    for (Size left = (m + TILE_ROWS - 1) / TILE_ROWS; left; left--) {
        const Size rows = m / left;
        switch (rows) {
            case 6: tile<Kind, 6, V>(k, lda, ldb, ldc, add, a, b, c); break;
            case 5: tile<Kind, 5, V>(k, lda, ldb, ldc, add, a, b, c); break;
            case 4: tile<Kind, 4, V>(k, lda, ldb, ldc, add, a, b, c); break;
            case 3: tile<Kind, 3, V>(k, lda, ldb, ldc, add, a, b, c); break;
            case 2: tile<Kind, 2, V>(k, lda, ldb, ldc, add, a, b, c); break;
            case 1: tile<Kind, 1, V>(k, lda, ldb, ldc, add, a, b, c); break;
        }
        m -= rows, a += rows * lda, c += rows * ldc;
    }
}

// A product (m, n) of rows of length k, with the leading dimensions of both factors and the result, to which it may add.
// n is a multiple of LANES.
typedef void (*Product)(Size m, Size n, Size k, Size lda, Size ldb, Size ldc, bool add, const void* a, const void* b,
                        void* c);

template <class Kind>
void product_of(Size m, Size n, Size k, Size lda, Size ldb, Size ldc, bool add, const void* left, const void* right,
                void* result) {
    auto a = (const typename Kind::Left*)left;
    auto b = (const typename Kind::Right*)right;
    auto c = (typename Kind::Sum*)result;
    const Size depth = (m <= FEW ? FEW_SLICE : SLICE) / (Size)sizeof(*b);
    for (Size deep = 0; deep < k; deep += depth, a += depth, b += depth * ldb) {
        const Size some = std::min(depth, k - deep);
        const bool more = add || deep;
        Size j = 0;
        auto strips = [&](auto vectors) {
            constexpr int V = decltype(vectors)::value;
            for (; j + V * LANES <= n; j += V * LANES)
                strip<Kind, V>(m, some, lda, ldb, ldc, more, a, b + j * Kind::TOGETHER, c + j);
        };
        strips(std::integral_constant<int, Kind::WIDE>{});
        strips(std::integral_constant<int, (Kind::WIDE + 1) / 2>{});
        strips(std::integral_constant<int, 1>{});
    }
}

#if defined __AVX512F__ && defined __linux__
#define MATRIX_TILES

// The tiles of AMX: registers of up to 16 rows of 64 bytes. An instruction adds the product of two of them to a third.
struct alignas(64) TileShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

template <int TILE>
inline void load_tile(const void* from, Size stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
inline void store_tile(void* to, Size stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(TILE) : "memory");
}
template <int TILE>
inline void start_tile(bool add, const void* from, Size stride) {
    if (add)
        load_tile<TILE>(from, stride);
    else
        asm volatile("tilezero %%tmm%c0" : : "i"(TILE));
}

// Dots sums the features behind the last whole tile. A row's sums of bfloat16 take other orders by tiles than by Dots, but
// which features either takes depends on their number alone.
struct TilesOfBytes {
    typedef ByDotsOfBytes Dots;
    template <int SUMS, int LEFT, int RIGHT>
    static void add() {
        asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(LEFT), "i"(RIGHT));
    }
};
struct TilesOfHalves {
    typedef ByDotsOfHalves Dots;
    template <int SUMS, int LEFT, int RIGHT>
    static void add() {
        asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(SUMS), "i"(LEFT), "i"(RIGHT));
    }
};

// R tiles of rows and V of columns of a product: 2 and at most 2, or 1 and at most 4. Strides are in bytes. Sums are in
// tiles 0 to 3, rows of the left factor in 4 and, of those below them, in 5, columns of the right one in the others.
template <class Kind, int R, int V>
inline void square(Size steps, Size lda, Size ldb, Size ldc, bool add, const char* a, const char* b, char* c) {
    constexpr int BELOW = R == 2 ? 5 : 4, RIGHT = BELOW + 1, NEXT = R == 2 ? 7 : 6;
    start_tile<0>(add, c, ldc);
    if (V > 1) start_tile<1>(add, c + 64, ldc);
    if (R == 2) start_tile<2>(add, c + 16 * ldc, ldc);
    if (R == 2 && V > 1) start_tile<3>(add, c + 16 * ldc + 64, ldc);
    if (R == 1 && V > 2) start_tile<2>(add, c + 128, ldc), start_tile<3>(add, c + 192, ldc);
    for (; steps; steps--, a += 64, b += 16 * ldb) {
        load_tile<4>(a, lda);
        if (R == 2) load_tile<BELOW>(a + 16 * lda, lda);
        for (Size i = AHEAD; i < AHEAD + 16; i++)
            for (int v = 0; v < V; v++) __builtin_prefetch(b + i * ldb + v * 64);
        load_tile<RIGHT>(b, ldb);
        Kind::template add<0, 4, RIGHT>();
        if (R == 2) Kind::template add<2, BELOW, RIGHT>();
        if (V > 1) {
            load_tile<NEXT>(b + 64, ldb);
            Kind::template add<1, 4, NEXT>();
            if (R == 2) Kind::template add<3, BELOW, NEXT>();
        }
        if (R == 1 && V > 2) {
            load_tile<7>(b + 128, ldb);
            Kind::template add<2, 4, 7>();
            load_tile<RIGHT>(b + 192, ldb);
            Kind::template add<3, 4, RIGHT>();
        }
    }
    store_tile<0>(c, ldc);
    if (V > 1) store_tile<1>(c + 64, ldc);
    if (R == 2) store_tile<2>(c + 16 * ldc, ldc);
    if (R == 2 && V > 1) store_tile<3>(c + 16 * ldc + 64, ldc);
    if (R == 1 && V > 2) store_tile<2>(c + 128, ldc), store_tile<3>(c + 192, ldc);
}

// What `shape_tiles` was called with last in this thread, 0 if its tiles have no shapes; see `UseOfTiles`.
thread_local int tile_rows = 0;

// The shapes of tiles for `square`, with so many rows in the upper tile and in that below it, if there is one.
inline void shape_tiles(int rows, int below) {
    const int wanted = rows | below << 8;
    if (tile_rows == wanted) return;
    tile_rows = wanted;
    TileShapes shapes;
    for (int tile = 0; tile < 8; tile++) {
        const bool right = tile > (below ? 5 : 4), lower = below && (tile == 2 || tile == 3 || tile == 5);
        shapes.bytes[tile] = 64, shapes.rows[tile] = (uint8_t)(right ? 16 : lower ? below : rows);
    }
    asm volatile("ldtilecfg %0" : : "m"(shapes));
}

// Up to 32 rows, or whole multiples of 32, in R tiles. A slice of the columns and of TALL rows stays in the first cache.
template <class Kind, int R>
void rows_by_tiles(Size m, Size n, Size steps, Size lda, Size ldb, Size ldc, bool add, const char* a, const char* b,
                   char* c) {
    constexpr Size TALL = 32, DEEP = 16;
    shape_tiles((int)std::min<Size>(m, 16), R == 1 ? 0 : (int)std::min<Size>(m, TALL) - 16);
    for (Size deep = 0; deep < steps; deep += DEEP, a += 64 * DEEP, b += 16 * DEEP * ldb) {
        const Size some = std::min(DEEP, steps - deep);
        for (Size i = 0; i < m; i += TALL) {
            Size j = 0;
            auto strips = [&](auto vectors) {
                constexpr int V = decltype(vectors)::value;
                for (; j + V * 16 <= n; j += V * 16)
                    square<Kind, R, V>(some, lda, ldb, ldc, add || deep, a + i * lda, b + j * 4, c + i * ldc + j * 4);
            };
            if (R == 1) strips(std::integral_constant<int, R == 1 ? 4 : 2>{});
            strips(std::integral_constant<int, 2>{});
            strips(std::integral_constant<int, 1>{});
        }
    }
}

template <class Kind>
void product_by_tiles(Size m, Size n, Size k, Size lda, Size ldb, Size ldc, bool add, const void* left, const void* right,
                      void* result) {
    constexpr Size SIZE = sizeof(typename Kind::Dots::Left), DEPTH = 64 / SIZE;
    const Size steps = k / DEPTH, whole = steps * DEPTH, tall = m / 32 * 32, rest = m - tall;
    auto a = (const char*)left, b = (const char*)right;
    auto c = (char*)result;
    const Size to_a = lda * SIZE, to_b = ldb * 4, to_c = ldc * 4;
    if (steps && tall) rows_by_tiles<Kind, 2>(tall, n, steps, to_a, to_b, to_c, add, a, b, c);
    if (steps && rest > 16)
        rows_by_tiles<Kind, 2>(rest, n, steps, to_a, to_b, to_c, add, a + tall * to_a, b, c + tall * to_c);
    else if (steps && rest)
        rows_by_tiles<Kind, 1>(rest, n, steps, to_a, to_b, to_c, add, a + tall * to_a, b, c + tall * to_c);
    if (whole < k)
        product_of<typename Kind::Dots>(m, n, k - whole, lda, ldb, ldc, add || steps, a + whole * SIZE,
                                        b + whole * ldb * SIZE, c);
}
#endif

// At its end this thread no longer uses tiles, whose state the system would otherwise save whenever it takes turns.
struct UseOfTiles {
    ~UseOfTiles() {
#ifdef MATRIX_TILES
        if (tile_rows) asm volatile("tilerelease");
        tile_rows = 0;
#endif
    }
};

Product products[3];  // of each precision
bool fast_halves;     // products in bfloat16 are faster than in float32

constexpr int PANEL = 64;     // columns of a product that are computed together
constexpr int BLOCK = 384;    // rows of a block
constexpr int AT_ONCE = 96;   // rows of a product whose sums stay in the first cache until results are computed of them
constexpr int QUERIES = 192;  // queries of a sequence that attention computes together
constexpr int KEYS = 256;     // keys of a tile of attention
constexpr int MARGIN = 64;    // bytes behind each buffer, for vectors that begin at its last element

inline int up(int x, int to) { return (x + to - 1) / to * to; }

inline size_t bytes_of(int precision) { return precision == FLOAT32 ? 4 : precision == BFLOAT16 ? 2 : 1; }

struct Buffer {
    void* at = nullptr;
    size_t size = 0;
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;
    Buffer(Buffer&& other) noexcept : at(other.at), size(other.size) { other.at = nullptr, other.size = 0; }
    ~Buffer() { free(); }

    // Large ones are whole huge pages.
    static std::align_val_t alignment(size_t bytes) { return std::align_val_t(bytes >= HUGE_PAGE ? HUGE_PAGE : 64); }
    void free() {
        if (at) ::operator delete(at, alignment(size));
        at = nullptr, size = 0;
    }

    // At least so many bytes, zero when they are new.
    template <class T>
    T* need(size_t count) {
        size_t bytes = count * sizeof(T) + MARGIN;
        if (bytes > size) {
            free();
            const bool large = bytes >= HUGE_PAGE / 2;
            if (large) bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
            at = ::operator new(bytes, alignment(bytes));
            size = bytes;
            if (large) ask_for_huge_pages(at, bytes);
            memset(at, 0, bytes);
        }
        return static_cast<T*>(at);
    }
    template <class T>
    T* as() const {
        return static_cast<T*>(at);
    }
};

// A weight (N, K) in panels of 64 rows, each as a product reads it: (K / s, 64, s), s features of a row together.
struct Linear {
    int rows = 0, columns = 0, panels = 0, depth = 0;
    Buffer weight, scales, sums, bias;

    void pack(int precision, const float* from, const float* added, int n, int k) {
        rows = n, columns = k, panels = up(n, PANEL) / PANEL, depth = up(k, 4);
        const int together = precision == FLOAT32 ? 1 : precision == BFLOAT16 ? 2 : 4;
        const size_t panel = (size_t)depth * PANEL;
        char* to = weight.need<char>(panel * panels * bytes_of(precision));
        float* scale = scales.need<float>(panels * PANEL);
        float* total = sums.need<float>(panels * PANEL);
        float* shift = bias.need<float>(panels * PANEL);
        for (int row = 0; row < n; row++) {
            const float* w = from + (size_t)row * k;
            if (added) shift[row] = added[row];
            const size_t first = row / PANEL * panel;
            const int column = row % PANEL;
            if (precision == FLOAT32) {
                float* place = reinterpret_cast<float*>(to) + first + column;
                for (int i = 0; i < k; i++) place[(size_t)i * PANEL] = w[i];
                continue;
            }
            if (precision == BFLOAT16) {
                uint16_t* place = reinterpret_cast<uint16_t*>(to) + first;
                for (int i = 0; i < k; i++)
                    place[(size_t)(i / together) * PANEL * together + column * together + i % together] =
                        to_bfloat16(w[i]);
                continue;
            }
            float most = 0;
            for (int i = 0; i < k; i++) most = std::max(most, std::fabs(w[i]));
            const float step = most / 127, per = step > 0 ? 1 / step : 0;
            int32_t whole = 0;
            int8_t* place = reinterpret_cast<int8_t*>(to) + first;
            for (int i = 0; i < k; i++) {
                int q = (int)lrintf(w[i] * per);
                q = std::min(127, std::max(-127, q));
                whole += q;
                place[(size_t)(i / together) * PANEL * together + column * together + i % together] = (int8_t)q;
            }
            scale[row] = step;
            total[row] = (float)BYTE_OFFSET * whole;
        }
    }
};

// --- what Python hands over ------------------------------------------------------------------------------------

}  // namespace

extern "C" {

struct NativeNorm {  // kind 0: none, 1: LayerNorm, 2: RMSNorm
    int32_t kind;
    float eps;
    const float* weight;
    const float* bias;
};

struct NativeLinear {  // rows 0: none
    int32_t rows, columns;
    const float* weight;
    const float* bias;
};

struct NativeWeights {  // one set of weights of a layer
    NativeLinear qkv, out, inner, outer;
    NativeNorm attention_norm, feedforward_norm, query_norm, key_norm, attention_output_norm, feedforward_output_norm;
    // Disentangled positions: the table of distances as keys and as queries, (rows, heads, width) each.
    const float *distance_keys, *distance_queries;
    int32_t distance_rows;
};

struct NativeLayer {
    int32_t weights;       // its set of weights
    int32_t norm_first;    // pre-norm
    int32_t gated;         // inner gives two halves, and the activation of the first multiplies the second
    int32_t activation;    // Activation
    int32_t heads, shared, width;  // heads of queries; of keys and values; features of a head
    int32_t rotation;      // the table of rotations, or -1
    int32_t distances;     // the table of terms by distance, or -1
    int32_t parts;         // terms of a score: 1, and for disentangled positions those by distance
    int32_t heads_normed;  // heads of queries that share a norm: 0 none, 1, or all
    int32_t output_norms;  // 1: what attention and feed-forward add is normalized; 2: what attention adds, with its input
};

struct NativeEmbedding {
    int32_t vocabulary, width, offset, segments, stored;  // stored: 0 float32, 1 bfloat16
    const void *words, *places, *types;
    float scale;  // of words
    NativeNorm norm;
    NativeLinear projection;
    int32_t project_first;
};

struct NativeEncoder {
    int32_t precision, width, layers, sets;
    const NativeLayer* layer;
    const NativeWeights* weights;
    NativeEmbedding embedding;
    NativeNorm final_norm;
};

// Rotations: (rows, columns) cosines, and sines. Terms: (heads, columns) by the position of the key minus that of the
// query, 0 at `middle`; for disentangled positions the rows of their table, int32, of all heads.
struct NativeTable {
    const void* values;
    const float* sines;
    int32_t columns, middle;
};

// Attention of a training step, float32. A token's queries, keys and values are `stride` floats behind those of the token
// before, their gradients `gradient_stride`, and mixed values and their gradient heads * width.
struct NativeAttention {
    const float *queries, *keys, *values;
    float *mixed, *softmax;  // of each query and head: the largest score, and 1 / the sum of exponentials
    const float* gradient;   // of `mixed`; null in the forward pass
    float *d_queries, *d_keys, *d_values;
    const int64_t* offsets;
    int64_t sequences, stride, gradient_stride;
    uint64_t seed;
    int32_t heads, width, radius, kept, threads;  // kept: so many of 65,536 probabilities are not dropped
};

// norm(x + dropout(h)) of a training step, (rows, width): x, sums, results and their gradients are float32, h and its
// gradient too or bfloat16. Of weights and biases the gradients of each share of the rows are apart.
struct NativeAddNorm {
    const float* x;
    const void* h;
    const float *weight, *bias;
    float *sums, *results, *moments;  // moments: of each row the mean and 1 / the standard deviation
    const float* gradient;            // of `results`; null in the forward pass
    float* d_x;
    void* d_h;
    float* d_norm;  // of each share: of the weight, then of the bias
    int64_t rows;
    uint64_t seed;
    int32_t width, halves, kept, threads, share;  // share: rows
    float eps;
};

// Scores of some rows of attention, (heads, rows, columns), -1e30 where there is no key; exponentials afterwards. Columns
// are whole cells from `first_column` on. What is measured of them is written for queries and added for keys and cells; see
// `unmask.interpret.attention.head_measures`. Arrays are those of all tokens of these heads.
struct NativeRows {
    float* scores;
    const float* norms;  // (heads, padded) of each key
    double *lse, *entropy, *distance, *norm_sum, *special, *beyond_entropy;                 // (heads, tokens)
    double *received, *causal, *received_norm;                                              // (heads, tokens)
    double *profile, *map_sum, *map_norm, *repeat_sum, *only_repeat_sum, *mark_sum, *first_sum;
    float *most, *near_keys, *map_most, *weights;
    int32_t *special_keys, *keys;
    const int64_t *bin_edges, *by_id, *id_first, *id_count;
    const int32_t *aside, *mark;   // tokens that are set aside, and punctuation
    const uint8_t *kept, *named;   // of each token: whether it is not set aside, and whether it has a class
    int32_t heads, rows, columns, first_row, first_column, tokens, padded, cell, cells, top_k, bins, asides, marks;
};

struct NativeMaxSim {
    const float* queries;                 // (count, width)
    const uint16_t* halves;               // (vectors, width) in float16; null where vectors are encoded:
    const uint16_t* codes;                // of each vector the number of its centroid
    const uint8_t* residuals;             // (vectors, bytes)
    const float *centroids, *of_byte;     // (centroids, width); (256, numbers of a byte) that a byte stands for
    const int64_t *offsets, *passages;    // where the vectors of each passage begin; those that are scored
    float *scores, *each;                 // (chosen,) sums; (chosen, count) their terms, or null
    int64_t chosen;
    int32_t count, width, bytes, in_byte, threads;
};

struct NativeProposal {
    const float* products;                // (count, centroids)
    const int64_t* const* borders;        // of each segment, (centroids + 1,): where the passages of a centroid begin
    const int32_t* const* passages;       // of each segment, in ascending order for each centroid
    const int64_t* starts;                // (segments + 1,) passages before each segment
    double* totals;                       // (passages,)
    int32_t count, centroids, probes, segments, threads;
};

struct NativeNear {
    const uint8_t* codes;                 // (rows, bytes)
    const float* weighted;                // (width,) what bytes are multiplied with; null for bits:
    const uint64_t* asked;                // (bytes / 8,) the code of the query
    float* products;                      // (rows,) of bytes
    int16_t* agreement;                   // (rows,) minus the bits that differ
    int64_t rows;
    int32_t width, bytes, threads;
};

struct NativeNearest {
    const float *vectors, *table;         // (count, width), (rows, width)
    int32_t* nearest;                     // (count,)
    int64_t count;
    int32_t rows, width, threads;
};

struct NativeRun {
    const int64_t *ids, *segments, *offsets;
    int64_t sequences;
    const int32_t* radius;  // of each layer: keys on each side; -1 for all, -2 for those before
    const NativeTable *rotations, *distances;
    float* states;          // (tokens, width)
    int32_t threads;
    const int64_t* places;  // (tokens,) of each token in its sequence, -1 and more; null: counted from 0
};
}

namespace {

// --- one encoder -----------------------------------------------------------------------------------------------

struct Norm {
    int kind = 0;
    float eps = 0;
    Buffer weight, bias;

    void take(const NativeNorm& from, int width) {
        kind = from.kind, eps = from.eps;
        if (!kind) return;
        float* w = weight.need<float>(up(width, LANES));
        float* b = bias.need<float>(up(width, LANES));
        if (from.weight) memcpy(w, from.weight, sizeof(float) * width);
        if (from.bias) memcpy(b, from.bias, sizeof(float) * width);
    }
};

// Disentangled positions of a layer: for every head the keys as a right factor, (width, rows), and the queries as a
// left one, (rows, width), scaled; in float32, and in bfloat16 where attention may be.
struct Distances {
    int rows = 0, padded = 0, deep = 0;
    Buffer keys[2], queries[2];

    void take(const NativeWeights& from, const NativeLayer& layer, bool halves) {
        rows = from.distance_rows;
        if (!rows) return;
        const int heads = layer.heads, width = layer.width;
        const float per = 1 / std::sqrt((float)width * layer.parts);
        padded = up(rows, PANEL), deep = up(width, 32);
        for (int half = 0; half <= halves; half++) {
            const size_t bytes = half ? 2 : 4;
            char* k = from.distance_keys ? keys[half].need<char>((size_t)heads * deep * padded * bytes) : nullptr;
            char* q = from.distance_queries ? queries[half].need<char>((size_t)heads * padded * deep * bytes)
                                            : nullptr;
            auto put = [&](char* to, size_t at, float x) {
                if (half)
                    ((uint16_t*)to)[at] = to_bfloat16(x);
                else
                    ((float*)to)[at] = x;
            };
            for (int head = 0; head < heads; head++)
                for (int row = 0; row < rows; row++)
                    for (int c = 0; c < width; c++) {
                        const size_t at = ((size_t)row * heads + head) * width + c;
                        const size_t first = (size_t)head * deep * padded;
                        if (k) put(k, first + (half ? (size_t)(c / 2) * padded * 2 + row * 2 + c % 2 : (size_t)c * padded + row), from.distance_keys[at]);
                        if (q) put(q, ((size_t)head * padded + row) * deep + c, from.distance_queries[at] * per);
                    }
        }
    }
    const char* keys_of(int head, bool half) const {
        return keys[half].as<char>() + (size_t)head * deep * padded * (half ? 2 : 4);
    }
    const char* query_at(int head, int row, bool half) const {
        return queries[half].as<char>() + ((size_t)head * padded + row) * deep * (half ? 2 : 4);
    }
};

struct Weights {
    Linear qkv, out, inner, outer;
    Norm attention_norm, feedforward_norm, query_norm, key_norm, attention_output_norm, feedforward_output_norm;
    Distances distances;
};

struct Embedding {
    NativeEmbedding spec;
    Norm norm;
    Linear projection;
};

// What a thread needs for one block of rows.
struct Scratch {
    Buffer operand, inner, inner_operand, mixed, added, tile, gate, scores, shares, keys, values, query, output, scale, most,
        part_most, by_query, by_key;
};

// The states of a run of tokens, queries, keys and values of this layer and the next, and tiles of long sequences.
struct States {
    Buffer x, qkv[2], keys, values, marks;

    size_t size() const { return x.size + qkv[0].size + qkv[1].size + keys.size + values.size + marks.size; }
};

struct Encoder {
    int precision, width;
    bool halves() const { return precision != FLOAT32 && fast_halves; }  // whether attention of long texts is in bfloat16
    std::vector<NativeLayer> layers;
    std::vector<Weights> weights;
    Embedding embedding;
    Norm final_norm;
    std::vector<std::unique_ptr<Scratch>> scratches;  // kept for the next call
    std::vector<std::unique_ptr<States>> states;
};

// Guards what all encoders keep. There is one, so that a fork can wait until no thread holds it.
std::mutex kept_lock;

constexpr size_t KEPT = size_t(64) << 20;  // bytes of states that an encoder keeps for the next call

inline bool worth_keeping(const Scratch&) { return true; }
inline bool worth_keeping(const States& states) { return states.size() <= KEPT; }

// One of the buffers that an encoder keeps, or new ones.
template <class T>
struct Borrowed {
    std::vector<std::unique_ptr<T>>& kept;
    std::unique_ptr<T> one;

    explicit Borrowed(std::vector<std::unique_ptr<T>>& kept) : kept(kept) {
        {
            std::lock_guard<std::mutex> held(kept_lock);
            if (!kept.empty()) one = std::move(kept.back()), kept.pop_back();
        }
        if (!one) one.reset(new T);
    }
    Borrowed(const Borrowed&) = delete;
    ~Borrowed() {
        if (!worth_keeping(*one)) return;
        std::lock_guard<std::mutex> held(kept_lock);
        kept.push_back(std::move(one));
    }
    T& operator*() const { return *one; }
    T* operator->() const { return one.get(); }
};

// Rows as an operand of a product: rounded to the precision of the weights. A row that holds a number which is not
// finite gets the scale NaN in int8, so that its products are NaN.
template <int PRECISION>
inline void to_operand(const float* x, int width, void* to, float* scale, float most) {
    if (PRECISION == FLOAT32) {
        if (to != x) memcpy(to, x, sizeof(float) * up(width, LANES));
    } else if (PRECISION == BFLOAT16) {
        for (int k = 0; k < width; k += LANES) {
            Halves half = to_bfloat16(load(x + k));
            memcpy((uint16_t*)to + k, &half, sizeof half);
        }
    } else {
        Floats peak{}, nothing{};
        if (most < 0) {
            for (int k = 0; k < width; k += LANES) {
                Floats v = load(x + k);
                peak = larger(magnitude(v), peak);
                nothing += v * 0.0f;
            }
            most = largest(peak) + sum(nothing);
        }
        const float step = most / 127, per = step > 0 ? 1 / step : 0;
        *scale = step;
        for (int k = 0; k < width; k += LANES) {
            Ints whole = same_bits<Ints>(load(x + k) * per + (ROUNDER + BYTE_OFFSET));
            Bytes low = __builtin_convertvector(whole & 255, Bytes);
            memcpy((uint8_t*)to + k, &low, sizeof low);
        }
    }
}

// Normalize a row into `to`, which may be x.
inline void normalize(const Norm& norm, const float* x, float* to, int width) {
    const float *weight = norm.weight.as<float>(), *bias = norm.bias.as<float>();
    const int whole = width / LANES * LANES, rest = width - whole;
    float mean = 0;
    if (norm.kind == 1) {
        Floats total{};
        for (int k = 0; k < whole; k += LANES) total += load(x + k);
        if (rest) total += only(load(x + whole), 0, rest, 0);
        mean = sum(total) / width;
    }
    Floats square{};
    for (int k = 0; k < whole; k += LANES) {
        Floats apart = load(x + k) - mean;
        square += apart * apart;
    }
    if (rest) {
        Floats apart = only(load(x + whole) - mean, 0, rest, 0);
        square += apart * apart;
    }
    const float per = 1 / std::sqrt(sum(square) / width + norm.eps);
    for (int k = 0; k < width; k += LANES)
        store(to + k, (load(x + k) - mean) * per * load(weight + k) + load(bias + k));
}

// --- linear layers ---------------------------------------------------------------------------------------------

struct Range {
    int first, end;
};

// Work on one block that several threads share, of which one waits for the others.
struct Sharing {
    using Part = std::function<void(Range, Scratch&)>;
    // Cut `all` into parts, and return when each is done; `own` is what the calling thread computes in.
    virtual void share(int all, const Part& part, Scratch& own) = 0;
    virtual ~Sharing() = default;
};

enum Ending { SET, ADD, ACTIVATE, GATE };

template <int PRECISION, int ENDING>
constexpr bool PEAKS = PRECISION == INT8 && (ENDING == ACTIVATE || ENDING == GATE);

// Some panels of `linear`.
template <int PRECISION, int ENDING>
void linear_panels(const Linear& weight, const void* operand, int stride, const float* scale, int rows, float* y, int ldy,
                   int activation, void* next, int ldnext, float* most, Range panels, Scratch& scratch) {
    constexpr bool EXACT = PRECISION == FLOAT32;
    const int half = ENDING == GATE ? weight.panels / 2 : 0;
    const size_t panel = (size_t)weight.depth * PANEL * bytes_of(PRECISION);
    float* tile = scratch.tile.need<float>(AT_ONCE * PANEL);
    float* other = ENDING == GATE ? scratch.gate.need<float>(AT_ONCE * PANEL) : nullptr;
    const char* packed = weight.weight.as<char>();
    auto finished = [&](const float* from, int n, int j, float step) {
        Floats bias = load(weight.bias.as<float>() + n + j);
        if (PRECISION != INT8) return load(from + j) + bias;
        Ints whole;
        memcpy(&whole, from + j, sizeof whole);
        Floats exact = __builtin_convertvector(whole, Floats) - load(weight.sums.as<float>() + n + j);
        return exact * (load(weight.scales.as<float>() + n + j) * step) + bias;
    };
    auto part_of = [&](int p, int first, int count) {
        const char* from = (const char*)operand + (size_t)first * stride * bytes_of(PRECISION);
        auto times = [&](int panel_number, float* to) {
            products[PRECISION](count, PANEL, weight.depth, stride, PANEL, PANEL, false, from, packed + panel_number * panel,
                                to);
        };
        times(p, tile);
        if (ENDING == GATE) times(p + half, other);
        const int n = p * PANEL;
        for (int row = first; row < first + count; row++) {
            const float step = PRECISION == INT8 ? scale[row] : 0;
            const float *sums = tile + (row - first) * PANEL, *gates = ENDING == GATE ? other + (row - first) * PANEL : nullptr;
            float* to = y ? y + (size_t)row * ldy + n : nullptr;
            Floats peak{}, nothing{};
            for (int j = 0; j < PANEL; j += LANES) {
                Floats v = finished(sums, n, j, step);
                if (ENDING == ACTIVATE) v = activate<EXACT>(v, activation);
                if (ENDING == GATE)
                    v = activate<EXACT>(v, activation) * finished(gates, n + half * PANEL, j, step);
                if (ENDING == ADD) v += load(to + j);
                if (ENDING == SET || ENDING == ADD) {
                    store(to + j, v);
                } else if (PRECISION == FLOAT32) {
                    store((float*)next + (size_t)row * ldnext + n + j, v);
                } else if (PRECISION == BFLOAT16) {
                    Halves rounded = to_bfloat16(v);
                    memcpy((uint16_t*)next + (size_t)row * ldnext + n + j, &rounded, sizeof rounded);
                } else {
                    store(to + j, v);
                    peak = larger(magnitude(v), peak);
                    nothing += v * 0.0f;
                }
            }
            if (PEAKS<PRECISION, ENDING>) {
                float* kept = most + row * 2 * LANES;
                store(kept, larger(load(kept), peak));
                store(kept + LANES, load(kept + LANES) + nothing);
            }
        }
    };
    for (int p = panels.first; p < panels.end; p++)
        for (int first = 0; first < rows; first += AT_ONCE) part_of(p, first, std::min(AT_ONCE, rows - first));
}

// y (rows, N) = operand (rows, K) times the weight, and what `ENDING` says. For ACTIVATE and GATE the results are
// written as the operand of the next product, or for int8 as floats with the largest magnitude of each row.
template <int PRECISION, int ENDING>
void linear(const Linear& weight, const void* operand, int stride, const float* scale, int rows, float* y, int ldy,
            int activation, void* next, int ldnext, float* most, Scratch& scratch, Sharing* sharing) {
    const int panels = ENDING == GATE ? weight.panels / 2 : weight.panels, peaks = rows * 2 * LANES;
    if (PEAKS<PRECISION, ENDING>) std::fill(most, most + peaks, 0.0f);
    if (!sharing) {
        linear_panels<PRECISION, ENDING>(weight, operand, stride, scale, rows, y, ldy, activation, next, ldnext, most,
                                         {0, panels}, scratch);
        return;
    }
    std::mutex lock;
    auto part = [&](Range some, Scratch& by) {
        float* own = PEAKS<PRECISION, ENDING> ? by.part_most.need<float>(peaks) : nullptr;
        if (own) std::fill(own, own + peaks, 0.0f);
        linear_panels<PRECISION, ENDING>(weight, operand, stride, scale, rows, y, ldy, activation, next, ldnext, own, some,
                                         by);
        if (!own) return;
        std::lock_guard<std::mutex> held(lock);
        for (int i = 0; i < peaks; i += 2 * LANES) {
            store(most + i, larger(load(most + i), load(own + i)));
            store(most + i + LANES, load(most + i + LANES) + load(own + i + LANES));
        }
    };
    sharing->share(panels, part, scratch);
}

// --- attention -------------------------------------------------------------------------------------------------

// The lower, or upper, halves of two vectors, element by element in turn.
#if defined __AVX512F__
#define LOWER(a, b) __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define UPPER(a, b) __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#elif defined __AVX2__
#define LOWER(a, b) __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define UPPER(a, b) __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#else
#define LOWER(a, b) __builtin_shufflevector(a, b, 0, 4, 1, 5)
#define UPPER(a, b) __builtin_shufflevector(a, b, 2, 6, 3, 7)
#endif

// The first half of a list of vectors interleaved with the second.
inline void interleave(const Bits* from, Bits* to) {
    for (int i = 0; i < LANES / 2; i++) {
        to[2 * i] = LOWER(from[i], from[i + LANES / 2]);
        to[2 * i + 1] = UPPER(from[i], from[i + LANES / 2]);
    }
}
#undef LOWER
#undef UPPER

// A square of LANES rows, of which some are there, turned. It interleaves as often as LANES is halved.
inline void turn(const uint32_t* from, size_t ldf, int rows, uint32_t* to, size_t ldt) {
    Bits a[LANES], b[LANES];
    for (int i = 0; i < LANES; i++) {
        a[i] = Bits{};
        if (i < rows) memcpy(&a[i], from + i * ldf, sizeof(Bits));
    }
    interleave(a, b), interleave(b, a);
    if (LANES >= 8) interleave(a, b);
    if (LANES == 16) interleave(b, a);
    for (int i = 0; i < LANES; i++) memcpy(to + i * ldt, LANES == 8 ? &b[i] : &a[i], sizeof(Bits));
}

// Keys of a tile as a product reads its right factor: (features, keys), or pairs of bfloat16 features of a key together.
inline void pack_keys(const float* from, size_t stride, int keys, int width, int ldn, bool halves, uint32_t* to) {
    const int deep = up(width, 32);
    if (!halves) {
        for (int j = 0; j < ldn; j += LANES)
            for (int c = 0; c < deep; c += LANES) {
                const int rows = std::max(0, std::min(LANES, keys - j));
                if (c + LANES <= width) {
                    turn((const uint32_t*)from + j * stride + c, stride, rows, to + (size_t)c * ldn + j, ldn);
                    continue;
                }
                float some[LANES * LANES] = {};
                for (int i = 0; i < rows; i++)
                    for (int k = c; k < width; k++) some[i * LANES + k - c] = from[(size_t)(j + i) * stride + k];
                turn((const uint32_t*)some, LANES, LANES, to + (size_t)c * ldn + j, ldn);
            }
        return;
    }
    uint16_t some[LANES * 512];
    for (int j = 0; j < ldn; j += LANES) {
        const int rows = std::max(0, std::min(LANES, keys - j));
        for (int i = 0; i < rows; i++)
            for (int c = 0; c < deep; c += LANES) {
                Floats v = c < width ? load(from + (size_t)(j + i) * stride + c) : Floats{};
                if (c + LANES > width) v = only(v, 0, width - c, 0);
                Halves half = to_bfloat16(v);
                memcpy(some + i * deep + c, &half, sizeof half);
            }
        for (int c = 0; c < deep / 2; c += LANES)
            turn((const uint32_t*)some + c, deep / 2, rows, to + (size_t)c * ldn + j, ldn);
    }
}

// Values of a tile as a right factor: (keys, features), or pairs of keys together; rows behind the last key are 0.
inline void pack_values(const float* from, size_t stride, int keys, int width, int ldn, bool halves, float* to) {
    const int deep = up(width, LANES);
    for (int j = 0; j < ldn; j += halves ? 2 : 1)
        for (int c = 0; c < deep; c += LANES) {
            auto value = [&](int key) {
                if (key >= keys) return Floats{};
                Floats v = load(from + (size_t)key * stride + c);
                return c + LANES > width ? only(v, 0, width - c, 0) : v;
            };
            if (!halves) {
                store(to + (size_t)j * deep + c, value(j));
                continue;
            }
            Bits low = __builtin_convertvector(to_bfloat16(value(j)), Bits);
            Bits high = __builtin_convertvector(to_bfloat16(value(j + 1)), Bits) << 16;
            Bits both = low | high;
            memcpy((uint32_t*)to + (size_t)(j / 2) * deep + c, &both, sizeof both);
        }
}

// Keys that the query at a place reads.
inline Range keys_of(int place, int length, int radius) {
    if (radius == -1) return {0, length};
    if (radius == -2) return {0, place + 1};
    return {std::max(0, place - radius), std::min(length, place + radius + 1)};
}

// Keys and values of a tile as products read them: `columns` of the rows of keys, which lie `stride` apart.
struct Tile {
    const char *keys, *values;
    int stride, columns;
};

using Mark = std::atomic<int>;  // of a tile: 2 * layer + 1 while a thread packs it, then 2 * layer + 2

// The tiles of each head of one sequence of more than QUERIES tokens, packed once in a layer and not for all queries anew.
struct Shelf {
    char *keys, *values;
    Mark* marks;
    int length, layer;  // keys of a head in whole tiles

    size_t at(int head, int key) const { return (size_t)head * length + key; }

    // Whether the tile is there, packed by now if nobody had begun. It never waits for a thread that packs it.
    template <class Pack>
    bool packed(int head, int key, const Pack& pack) const {
        Mark& mark = marks[at(head, key) / KEYS];
        const int ready = 2 * layer + 2;
        int now = mark.load(std::memory_order_acquire);
        if (now < ready - 1 && mark.compare_exchange_strong(now, ready - 1)) {
            pack();
            mark.store(ready, std::memory_order_release);
            return true;
        }
        return now == ready;
    }
};

// Attention of the queries `place` to `place + rows` of one sequence, whose first token is at `qkv`, by the softmax over
// one tile of keys after the other (Milakov & Gimelshein 2018, Dao et al. 2022).
struct Attention {
    const NativeLayer& layer;
    const Distances& distances;
    const float* qkv;
    const size_t stride;
    const int length, place, rows, radius;
    const NativeTable* terms;
    const bool halves;
    const Shelf* shelf;  // null if the tiles of this sequence are not kept
    Scratch& scratch;

    const int width = layer.width, deep = up(width, 32), wide = up(width, LANES);
    const int precision = halves ? BFLOAT16 : FLOAT32, bytes = (int)bytes_of(precision), padded = distances.padded;
    const bool apart = distances.rows > 0, to_content = distances.keys[0].at, to_position = distances.queries[0].at;
    // Rows of the table by the position of the key minus that of the query; they never increase with it.
    const int32_t* const row_of = apart ? (const int32_t*)terms->values + terms->middle : nullptr;
    // Tiles of keys begin and end at the same places of a text for every block of its queries, so that its sums do too; in
    // bfloat16 at multiples of the keys that an instruction may sum.
    const int together = halves ? 32 : 16;
    const int first = keys_of(place, length, radius).first / together * together;
    const int end = keys_of(place + rows - 1, length, radius).end;
    float* const query = scratch.query.need<float>((size_t)QUERIES * deep);
    float* const score = scratch.scores.need<float>((size_t)QUERIES * KEYS);
    uint16_t* const share = halves ? scratch.shares.need<uint16_t>((size_t)QUERIES * KEYS) : nullptr;
    float* const output = scratch.output.need<float>((size_t)QUERIES * wide);
    float* const by_query = to_content ? scratch.by_query.need<float>((size_t)QUERIES * padded) : nullptr;
    const float* by_key = nullptr;  // products of the keys of a tile with the rows of the table from `lowest` on
    int lowest = 0;
    const float* term = nullptr;  // of the head, by distance
    float highest[QUERIES], total[QUERIES];

    void heads(Range range, float* mixed, int ldm) {
        const int count = range.end - range.first;
        for (int i = 0; i < count; i++) {
            const int head = range.first + (i + place / QUERIES) % count;  // so that threads pack tiles of different heads
            begin(head);
            for (int from = first, next; from < end; from = next) {
                next = std::min(end, (from / KEYS + 1) * KEYS);
                add_tile(head, from, next - from);
            }
            for (int row = 0; row < rows; row++) {
                const float by = 1 / total[row];
                float* to = mixed + (size_t)row * ldm + head * width;
                for (int c = 0; c < width; c += LANES) {
                    Floats x = load(output + row * wide + c) * by;
                    if (c + LANES <= width)
                        store(to + c, x);
                    else
                        memcpy(to + c, &x, sizeof(float) * (width - c));
                }
            }
        }
    }

    // The queries of a head, scaled, and their products with the rows of the table of distances that they reach.
    void begin(int head) {
        const float* q = qkv + (size_t)place * stride + head * width;
        const float per = 1 / std::sqrt((float)width * layer.parts);
        for (int row = 0; row < rows; row++) {
            highest[row] = -INFINITY, total[row] = 0;
            for (int c = 0; c < deep; c += LANES) {
                Floats x = c < width ? load(q + row * stride + c) * per : Floats{};
                if (c + LANES > width) x = only(x, 0, width - c, 0);
                if (halves) {
                    Halves half = to_bfloat16(x);
                    memcpy((uint16_t*)query + row * deep + c, &half, sizeof half);
                } else {
                    store(query + row * deep + c, x);
                }
            }
        }
        if (terms && !apart) term = (const float*)terms->values + (size_t)head * terms->columns + terms->middle;
        if (!to_content) return;
        const int low = row_of[end - 1 - place] / LANES * LANES;
        const int high = up(row_of[first - (place + rows - 1)] + 1, LANES);
        const char* keys = distances.keys_of(head, halves) + (size_t)low * 4;  // of float32, or pairs of bfloat16
        products[precision](rows, high - low, deep, deep, padded, padded, false, query, keys, by_query + low);
    }

    Tile tile(int head, int from, int keys) {
        const int shared = head / (layer.heads / layer.shared);
        const float* k = qkv + (layer.heads + shared) * width;
        const float* v = k + layer.shared * width;
        auto columns_of = [this](int count) { return up(count, count <= 64 ? together : 64); };
        auto pack = [&](int at, int count, void* to_keys, void* to_values) {
            const int columns = columns_of(count);
            pack_keys(k + at * stride, stride, count, width, columns, halves, (uint32_t*)to_keys);
            pack_values(v + at * stride, stride, count, width, columns, halves, (float*)to_values);
        };
        if (shelf) {
            const int whole = from / KEYS * KEYS, count = std::min(KEYS, length - whole), columns = columns_of(count);
            char* kept_keys = shelf->keys + shelf->at(shared, whole) * deep * bytes;
            char* kept_values = shelf->values + shelf->at(shared, whole) * wide * bytes;
            if (shelf->packed(shared, whole, [&] { pack(whole, count, kept_keys, kept_values); })) {
                const size_t before = from - whole;  // in a row of the keys, which holds a feature or a pair of them
                return {kept_keys + before * 4, kept_values + before * wide * bytes, columns,
                        std::min(columns_of(keys), columns - (int)before)};
            }
        }
        char* own_keys = scratch.keys.need<char>((size_t)KEYS * deep * bytes);
        char* own_values = scratch.values.need<char>((size_t)KEYS * wide * bytes);
        pack(from, keys, own_keys, own_values);
        return {own_keys, own_values, columns_of(keys), columns_of(keys)};
    }

    void add_tile(int head, int from, int keys) {
        const Tile tile = this->tile(head, from, keys);
        const int ldn = tile.columns;
        products[precision](rows, ldn, deep, deep, tile.stride, ldn, false, query, tile.keys, score);
        if (to_position) {
            lowest = row_of[from + keys - 1 - place];
            const int count = row_of[from - (place + rows - 1)] - lowest + 1;
            float* to = scratch.by_key.need<float>((size_t)count * ldn);
            products[precision](count, ldn, deep, deep, tile.stride, ldn, false, distances.query_at(head, lowest, halves),
                                tile.keys, to);
            by_key = to;
        }
        for (int row = 0; row < rows; row++) {
            const float old = to_shares(row, from, keys, ldn);
            if (from > first && old != 1)
                for (int c = 0; c < wide; c += LANES)
                    store(output + row * wide + c, load(output + row * wide + c) * old);
        }
        products[precision](rows, wide, ldn, ldn, wide, wide, from > first, halves ? (const void*)share : score, tile.values,
                            output);
    }

    // What distances add to the scores of a query with LANES keys, whose positions are `at` and more behind the query's.
    // Of keys before `low` and from `high` on, the tables may hold nothing.
    Floats by_distance(int row, int j, int ldn, int at, int low, int high) const {
        const bool all_seen = low <= 0 && high >= LANES;
        low = std::max(0, low), high = std::min(LANES, high);
        if (term) {
            if (all_seen) return load(term + at);
            float some[LANES] = {};
            for (int i = low; i < high; i++) some[i] = term[at + i];
            return load(some);
        }
        const float* of_query = to_content ? by_query + (size_t)row * padded : nullptr;
        Floats added{};
        if (all_seen) {
            const Ints at_row = vector_at<Ints>(row_of + at);
            if (to_content) added = gathered(of_query, at_row);
            if (to_position) added += gathered(by_key + j, (at_row - lowest) * ldn + COUNT);
            return added;
        }
        for (int i = 0; i < high; i++) {
            const int at_row = row_of[at + i];
            if (to_content) added[i] = of_query[at_row];
            if (to_position) added[i] += by_key[(size_t)(at_row - lowest) * ldn + j + i];
        }
        return added;
    }

    // A query's scores with the keys of a tile become shares relative to its highest score so far. Returns what its
    // earlier shares are multiplied by.
    float to_shares(int row, int from, int keys, int ldn) {
        const Range seen = keys_of(place + row, length, radius);
        const int low = std::max(0, seen.first - from), high = std::min(keys, seen.end - from);
        const int a = low / LANES * LANES, b = up(std::max(high, 0), LANES), at = from - (place + row);
        const bool distant = term || apart, rounded = halves;
        float* s = score + (size_t)row * ldn;
        uint16_t* to = share + (size_t)row * ldn;
        Floats peak = all(-INFINITY);
        for (int j = a; j < b; j += LANES) {
            Floats x = load(s + j);
            if (distant) {
                x += by_distance(row, j, ldn, at + j, low - j, high - j);
                store(s + j, x);
            }
            if (j < low || j + LANES > high) x = only(x, low - j, high - j, -INFINITY);
            peak = larger(x, peak);
        }
        const float now = std::max(highest[row], largest(peak));
        float old = 1;
        if (now > highest[row]) {
            old = highest[row] == -INFINITY ? 0 : std::exp(highest[row] - now);
            highest[row] = now;
        }
        Floats added{};
        for (int j = 0; j < ldn; j += LANES) {
            Floats x{};
            if (j >= a && j < b) {
                x = load(s + j) - now;
                x = rounded ? exponential<false>(x) : exponential(x);
                if (j < low || j + LANES > high) x = only(x, low - j, high - j, 0);
            }
            added += x;
            if (rounded) {
                Halves half = to_bfloat16(x);
                memcpy(to + j, &half, sizeof half);
            } else {
                store(s + j, x);
            }
        }
        total[row] = total[row] * old + sum(added);
        return old;
    }
};

// Rotate the queries and keys of a token: pairs of features i and i + columns of each head (Su et al. 2021).
inline void rotate(const NativeTable& table, int place, float* row, int heads, int width) {
    const float* cosine = (const float*)table.values + (size_t)place * table.columns;
    const float* sine = table.sines + (size_t)place * table.columns;
    const int half = table.columns;
    for (int head = 0; head < heads; head++) {
        float *a = row + head * width, *b = a + half;
        int c = 0;
        for (; c + LANES <= half; c += LANES) {
            Floats x = load(a + c), y = load(b + c), u = load(cosine + c), w = load(sine + c);
            store(a + c, x * u - y * w);
            store(b + c, y * u + x * w);
        }
        for (; c < half; c++) {
            const float x = a[c], y = b[c];
            a[c] = x * cosine[c] - y * sine[c];
            b[c] = y * cosine[c] + x * sine[c];
        }
    }
}

// --- blocks of rows --------------------------------------------------------------------------------------------

// The sequences of one run that are computed together: tokens `base` to `base + tokens`.
struct Piece {
    const Encoder* encoder;
    const NativeRun* run;
    int64_t first, end;  // sequences
    int64_t base;
    int tokens;
    States* states;
    std::vector<size_t> shelves{};  // keys of long sequences before each sequence

    int wide() const { return up(encoder->width, PANEL); }
    float* x(int row) const { return states->x.as<float>() + (size_t)row * wide(); }
    size_t stride(int layer) const {
        const NativeLayer& one = encoder->layers[layer];
        return up((one.heads + 2 * one.shared) * one.width, PANEL);
    }
    float* qkv(int layer, int row) const { return states->qkv[layer % 2].as<float>() + row * stride(layer); }

    int64_t sequence_of(int row) const {
        return std::upper_bound(run->offsets + first, run->offsets + end + 1, base + row) - run->offsets - 1;
    }

    void prepare() {
        size_t most = 0, deep = 0, heads = 0;
        for (size_t layer = 0; layer < encoder->layers.size(); layer++) {
            const NativeLayer& spec = encoder->layers[layer];
            most = std::max(most, stride((int)layer));
            heads = std::max(heads, (size_t)spec.shared);
            deep = std::max(deep, (size_t)spec.shared * up(spec.width, 32));
        }
        states->x.need<float>((size_t)tokens * wide());
        states->qkv[0].need<float>((size_t)tokens * most);
        if (encoder->layers.size() > 1) states->qkv[1].need<float>((size_t)tokens * most);
        size_t keys = 0;
        for (int64_t s = first; s < end; s++) {
            shelves.push_back(keys);
            if (length_of(s) > QUERIES) keys += up(length_of(s), KEYS);
        }
        if (!keys) return;
        const size_t bytes = keys * deep * (encoder->halves() ? 2 : 4), marks = keys / KEYS * heads;
        states->keys.need<char>(bytes), states->values.need<char>(bytes);
        Mark* mark = states->marks.need<Mark>(marks);
        for (size_t i = 0; i < marks; i++) new (mark + i) Mark(0);
    }

    int length_of(int64_t sequence) const { return (int)(run->offsets[sequence + 1] - run->offsets[sequence]); }

    Shelf shelf(int layer, int64_t sequence) const {
        const NativeLayer& spec = encoder->layers[layer];
        const size_t at = shelves[sequence - first] * spec.shared, bytes = at * (encoder->halves() ? 2 : 4);
        return {states->keys.as<char>() + bytes * up(spec.width, 32), states->values.as<char>() + bytes * up(spec.width, LANES),
                states->marks.as<Mark>() + at / KEYS, up(length_of(sequence), KEYS), layer};
    }
};

template <int PRECISION>
struct Worker {
    const Piece& piece;
    const Encoder& encoder;
    Scratch& scratch;
    Sharing* sharing;  // null if this thread computes its rows alone
    int stride = 0;    // of operands as wide as the widest
    void* operand = nullptr;
    float* scale = nullptr;

    Worker(const Piece& piece, Scratch& scratch, Sharing* sharing)
        : piece(piece), encoder(*piece.encoder), scratch(scratch), sharing(sharing) {
        int widest = std::max(encoder.width, encoder.embedding.spec.width);
        for (const NativeLayer& layer : encoder.layers) widest = std::max(widest, layer.heads * layer.width);
        stride = up(widest, PANEL);
        operand = scratch.operand.need<char>((size_t)BLOCK * stride * bytes_of(PRECISION));
        scale = scratch.scale.need<float>(BLOCK);
        scratch.most.need<float>(BLOCK * 2 * LANES);
        scratch.mixed.need<float>((size_t)BLOCK * stride);
    }

    void* operand_row(int row) const { return (char*)operand + (size_t)row * stride * bytes_of(PRECISION); }

    void to_operands(const float* x, size_t ldx, int width, int rows) {
        for (int row = 0; row < rows; row++)
            to_operand<PRECISION>(x + row * ldx, width, operand_row(row), scale + row, -1);
    }

    // Post-norm: the states become their norm, and the operand. Pre-norm: the operand is the norm of the states.
    void norm_rows(const Norm& norm, bool in_place, int row, int rows) {
        const int width = encoder.width;
        float* apart = scratch.mixed.as<float>();
        for (int i = 0; i < rows; i++) {
            float* x = piece.x(row + i);
            float* to = in_place ? x : apart;
            if (norm.kind) normalize(norm, x, to, width);
            to_operand<PRECISION>(norm.kind ? to : x, width, operand_row(i), scale + i, -1);
        }
    }

    void embed(int row, int rows) {
        const NativeEmbedding& spec = encoder.embedding.spec;
        const NativeRun& run = *piece.run;
        const int width = spec.width, wide = up(width, PANEL);
        const bool projected = spec.projection.rows > 0;
        float* sums = projected ? scratch.mixed.as<float>() : nullptr;
        int64_t sequence = piece.sequence_of(row);
        auto add = [&](float* to, const void* table, int64_t at, bool fresh) {
            const int whole = width / LANES * LANES;
            const char* from = (const char*)table + at * width * (spec.stored ? 2 : 4);
            auto read = [&](int k) { return spec.stored ? from_bfloat16((const uint16_t*)from + k) : load((const float*)from + k); };
            int k = 0;
            for (; k < whole; k += LANES) store(to + k, fresh ? read(k) : load(to + k) + read(k));
            for (; k < width; k++) {
                float one;
                if (spec.stored) {
                    const uint32_t bits = (uint32_t)((const uint16_t*)from)[k] << 16;
                    memcpy(&one, &bits, 4);
                } else {
                    one = ((const float*)from)[k];
                }
                to[k] = fresh ? one : to[k] + one;
            }
        };
        for (int i = 0; i < rows; i++) {
            const int64_t token = piece.base + row + i;
            while (token >= run.offsets[sequence + 1]) sequence++;
            float* to = projected ? sums + (size_t)i * wide : piece.x(row + i);
            std::fill(to + width, to + up(width, LANES), 0.0f);  // the last vector of a row is read whole
            add(to, spec.words, run.ids[token], true);
            if (spec.scale != 1)
                for (int k = 0; k < width; k += LANES) store(to + k, load(to + k) * spec.scale);
            if (spec.types) add(to, spec.types, run.segments[token], false);
            const int64_t place = run.places ? run.places[token] : token - run.offsets[sequence];
            if (spec.places) add(to, spec.places, place + spec.offset, false);
            if (encoder.embedding.norm.kind && !(projected && spec.project_first))
                normalize(encoder.embedding.norm, to, to, width);
        }
        if (!projected) return;
        to_operands(sums, wide, width, rows);
        linear<PRECISION, SET>(encoder.embedding.projection, operand, stride, scale, rows, piece.x(row), piece.wide(), 0,
                               nullptr, 0, nullptr, scratch, sharing);
        if (encoder.embedding.norm.kind && spec.project_first)
            for (int i = 0; i < rows; i++)
                normalize(encoder.embedding.norm, piece.x(row + i), piece.x(row + i), encoder.width);
    }

    // Queries, keys and values of a layer from the operand.
    void project(int index, int row, int rows) {
        const NativeLayer& layer = encoder.layers[index];
        const Linear& qkv = encoder.weights[layer.weights].qkv;
        const size_t ldq = piece.stride(index);
        linear<PRECISION, SET>(qkv, operand, stride, scale, rows, piece.qkv(index, row), (int)ldq, 0, nullptr, 0, nullptr,
                               scratch, sharing);
        if (layer.heads_normed)
            for (int i = 0; i < rows; i++) norm_scored(layer, piece.qkv(index, row + i));
        if (layer.rotation < 0) return;
        const NativeRun& run = *piece.run;
        const NativeTable& table = run.rotations[layer.rotation];
        int64_t sequence = piece.sequence_of(row);
        for (int i = 0; i < rows; i++) {
            const int64_t token = piece.base + row + i;
            while (token >= run.offsets[sequence + 1]) sequence++;
            rotate(table, (int)(token - run.offsets[sequence]), piece.qkv(index, row + i), layer.heads + layer.shared,
                   layer.width);
        }
    }

    // Normalize the queries and keys of a token: each head, or all heads of each together.
    void norm_scored(const NativeLayer& layer, float* row) {
        const Weights& weights = encoder.weights[layer.weights];
        float* apart = scratch.mixed.as<float>();  // the last vector of a norm is written whole
        for (int part = 0; part < 2; part++) {
            const int heads = part ? layer.shared : layer.heads, together = layer.heads_normed == 1 ? 1 : heads;
            const int width = together * layer.width;
            for (int head = 0; head < heads; head += together, row += width) {
                normalize(part ? weights.key_norm : weights.query_norm, row, apart, width);
                memcpy(row, apart, sizeof(float) * width);
            }
        }
    }

    void begin(int row, int rows) {
        embed(row, rows);
        enter(0, row, rows);
    }

    // From the states to the queries, keys and values of a layer; post-norm states are normalized already.
    void enter(int index, int row, int rows) {
        const NativeLayer& layer = encoder.layers[index];
        if (layer.norm_first)
            norm_rows(encoder.weights[layer.weights].attention_norm, false, row, rows);
        else
            to_operands(piece.x(row), piece.wide(), encoder.width, rows);
        project(index, row, rows);
    }

    // Add a linear layer of an operand to the states, or (normed: 1) the norm of it, or (2) of its sum with the states.
    void add_linear(const Linear& weight, const void* from, int ldf, const Norm& norm, int normed, int row, int rows) {
        if (!normed) {
            linear<PRECISION, ADD>(weight, from, ldf, scale, rows, piece.x(row), piece.wide(), 0, nullptr, 0, nullptr, scratch,
                                   sharing);
            return;
        }
        const int width = encoder.width, wide = piece.wide();
        float* added = scratch.added.need<float>((size_t)BLOCK * wide);
        linear<PRECISION, SET>(weight, from, ldf, scale, rows, added, wide, 0, nullptr, 0, nullptr, scratch, sharing);
        for (int i = 0; i < rows; i++) {
            float *y = added + (size_t)i * wide, *x = piece.x(row + i);
            if (normed == 2)
                for (int k = 0; k < width; k += LANES) store(y + k, load(y + k) + load(x + k));
            normalize(norm, y, y, width);
            for (int k = 0; k < width; k += LANES) store(x + k, load(x + k) + load(y + k));
        }
    }

    // One layer of a block, whose queries, keys and values are there for every token of its sequences.
    void layer(int index, int row, int rows) {
        const NativeLayer& spec = encoder.layers[index];
        const Weights& weights = encoder.weights[spec.weights];
        const NativeRun& run = *piece.run;
        const int mixed_width = spec.heads * spec.width;
        float* mixed = scratch.mixed.as<float>();
        const NativeTable* terms = spec.distances < 0 ? nullptr : &run.distances[spec.distances];
        const size_t ldq = piece.stride(index);
        if (mixed_width % LANES)  // the last vector of a row is read whole
            for (int i = 0; i < rows; i++)
                memset(mixed + (size_t)i * stride + mixed_width, 0, sizeof(float) * (up(mixed_width, LANES) - mixed_width));
        int64_t sequence = piece.sequence_of(row);
        for (int done = 0; done < rows;) {
            const int64_t start = run.offsets[sequence] - piece.base;
            const int length = piece.length_of(sequence);
            const int place = (int)(row + done - start), some = std::min({rows - done, length - place, QUERIES});
            const bool halves = encoder.halves() && length >= HALVES_FROM, kept = length > QUERIES;
            const float* qkv = piece.qkv(index, (int)start);
            float* to = mixed + (size_t)done * stride;
            const Shelf shelf = kept ? piece.shelf(index, sequence) : Shelf{};
            auto part = [&](Range heads, Scratch& by) {
                Attention{spec, weights.distances, qkv, ldq, length, place, some, run.radius[index], terms, halves,
                          kept ? &shelf : nullptr, by}
                    .heads(heads, to, stride);
            };
            sharing ? sharing->share(spec.heads, part, scratch) : part({0, spec.heads}, scratch);
            done += some;
            sequence += place + some == length;
        }
        to_operands(mixed, stride, mixed_width, rows);
        add_linear(weights.out, operand, stride, weights.attention_output_norm, spec.output_norms, row, rows);
        if (spec.norm_first)
            norm_rows(weights.feedforward_norm, false, row, rows);
        else
            norm_rows(weights.attention_norm, true, row, rows);
        feed_forward(spec, weights, row, rows);
        const bool last = index + 1 == (int)encoder.layers.size();
        if (!spec.norm_first)
            for (int i = 0; i < rows; i++)
                normalize(weights.feedforward_norm, piece.x(row + i), piece.x(row + i), encoder.width);
        if (!last) {
            enter(index + 1, row, rows);
            return;
        }
        for (int i = 0; i < rows; i++) {
            float* state = piece.x(row + i);
            if (encoder.final_norm.kind) normalize(encoder.final_norm, state, state, encoder.width);
            memcpy(run.states + (size_t)(piece.base + row + i) * encoder.width, state, sizeof(float) * encoder.width);
        }
    }

    void feed_forward(const NativeLayer& spec, const Weights& weights, int row, int rows) {
        const int wide = up(weights.outer.columns, PANEL);
        void* next = scratch.inner_operand.need<char>((size_t)BLOCK * wide * bytes_of(PRECISION));
        float* inner = PRECISION == INT8 ? scratch.inner.need<float>((size_t)BLOCK * wide) : nullptr;
        float* most = scratch.most.as<float>();
        auto into = spec.gated ? linear<PRECISION, GATE> : linear<PRECISION, ACTIVATE>;
        into(weights.inner, operand, stride, scale, rows, inner, wide, spec.activation, next, wide, most, scratch, sharing);
        if (PRECISION == INT8)
            for (int i = 0; i < rows; i++) {
                const float* kept = most + i * 2 * LANES;
                to_operand<PRECISION>(inner + (size_t)i * wide, wide, (char*)next + (size_t)i * wide, scale + i,
                                      largest(load(kept)) + sum(load(kept + LANES)));
            }
        add_linear(weights.outer, next, wide, weights.feedforward_output_norm, spec.output_norms == 1, row, rows);
    }

    static constexpr int HALVES_FROM = 96;  // tokens of a sequence from which attention in bfloat16 is faster
};

template <int PRECISION>
void whole_piece(const Piece& piece, Scratch& scratch, Sharing* sharing) {
    Worker<PRECISION> worker(piece, scratch, sharing);
    const int layers = (int)piece.encoder->layers.size();
    for (int layer = -1; layer < layers; layer++)
        for (int row = 0; row < piece.tokens; row += BLOCK) {
            const int rows = std::min(BLOCK, piece.tokens - row);
            if (layer < 0)
                worker.begin(row, rows);
            else
                worker.layer(layer, row, rows);
        }
}

// --- threads ---------------------------------------------------------------------------------------------------

// Work that any number of threads can join. `join` returns when nothing is left for the thread to begin.
struct Job {
    std::atomic<bool> failed{false};
    std::string failure;
    std::mutex lock;
    virtual void join() = 0;
    virtual ~Job() = default;

    void guarded() {
        UseOfTiles tiles;
        try {
            join();
        } catch (const std::exception& error) {
            fail(error.what());
        } catch (...) {
            fail("an unknown exception");
        }
    }
    void fail(const char* why) {
        std::lock_guard<std::mutex> held(lock);
        if (!failed.exchange(true)) failure = why;
    }
};

struct Pool {
    std::mutex lock;
    std::condition_variable wake;
    std::vector<std::shared_ptr<Job>> waiting;
    int threads = 0;

    void offer(const std::shared_ptr<Job>& job, int helpers) {
        std::lock_guard<std::mutex> held(lock);
        for (; threads < helpers; threads++) std::thread([this] { serve(); }).detach();
        for (int i = 0; i < helpers; i++) waiting.push_back(job);
        helpers == 1 ? wake.notify_one() : wake.notify_all();
    }
    void withdraw(const Job* job) {
        std::lock_guard<std::mutex> held(lock);
        waiting.erase(std::remove_if(waiting.begin(), waiting.end(),
                                     [&](const std::shared_ptr<Job>& one) { return one.get() == job; }),
                      waiting.end());
    }
    void serve() {
        for (;;) {
            std::shared_ptr<Job> job;
            {
                std::unique_lock<std::mutex> held(lock);
                wake.wait(held, [this] { return !waiting.empty(); });
                job = std::move(waiting.front());
                waiting.erase(waiting.begin());
            }
            job->guarded();
        }
    }
};

// Never destroyed: its threads may run until the process ends. A fork leaves them behind, so the child begins anew.
Pool* pool = nullptr;
std::mutex pool_lock;

void before_fork() { pool_lock.lock(), kept_lock.lock(); }
void in_parent() { kept_lock.unlock(), pool_lock.unlock(); }
void in_child() {
    new (&pool_lock) std::mutex;
    new (&kept_lock) std::mutex;
    pool = nullptr;
}

Pool& the_pool() {
    std::lock_guard<std::mutex> held(pool_lock);
    static bool registered = false;
    if (!registered) registered = at_fork(before_fork, in_parent, in_child);
    if (!pool) pool = new Pool;
    return *pool;
}

void whole(const Piece& piece, Scratch& scratch, Sharing* sharing = nullptr) {
    switch (piece.encoder->precision) {
        case FLOAT32:
            return whole_piece<FLOAT32>(piece, scratch, sharing);
        case BFLOAT16:
            return whole_piece<BFLOAT16>(piece, scratch, sharing);
        default:
            return whole_piece<INT8>(piece, scratch, sharing);
    }
}

// Chunks of whole sequences, each by one thread.
struct Chunks : Job {
    std::shared_ptr<Encoder> owner;  // a helper may leave after the call has returned
    Encoder& encoder;
    const NativeRun& run;
    std::vector<int64_t> cuts;  // sequences
    std::atomic<int> next{0}, done{0};

    Chunks(std::shared_ptr<Encoder> owner, const NativeRun& run, std::vector<int64_t> cuts)
        : owner(std::move(owner)), encoder(*this->owner), run(run), cuts(std::move(cuts)) {}
    int count() const { return (int)cuts.size() - 1; }

    void join() override {
        int chunk = next.fetch_add(1);
        if (chunk >= count()) return;
        Borrowed<Scratch> scratch(encoder.scratches);
        Borrowed<States> states(encoder.states);
        for (; chunk < count(); chunk = next.fetch_add(1)) {
            struct Counted {
                std::atomic<int>& done;
                ~Counted() { done.fetch_add(1, std::memory_order_release); }
            } counted{done};
            if (failed) continue;
            try {
                const int64_t base = run.offsets[cuts[chunk]];
                Piece piece{&encoder, &run, cuts[chunk], cuts[chunk + 1], base,
                            (int)(run.offsets[cuts[chunk + 1]] - base), &*states};
                piece.prepare();
                whole(piece, *scratch);
            } catch (const std::exception& error) {
                fail(error.what());
            } catch (...) {
                fail("an unknown exception");
            }
        }
    }
    void wait() {
        for (int turns = 0; done.load(std::memory_order_acquire) < count();) relax(turns);
    }
};

// All sequences together, block after block; threads meet at the end of each layer.
template <int PRECISION>
struct Team : Job {
    std::shared_ptr<Encoder> owner;
    Encoder& encoder;
    Borrowed<States> states;
    Piece piece;
    int size, blocks, steps;
    std::vector<std::atomic<int>> next, done;

    Team(std::shared_ptr<Encoder> given, const NativeRun& run)
        : owner(std::move(given)),
          encoder(*owner),
          states(encoder.states),
          piece{&encoder, &run, 0, run.sequences, 0, (int)run.offsets[run.sequences], &*states},
          size(0),
          blocks(0),
          steps((int)encoder.layers.size() + 1),
          next(steps),
          done(steps) {
        // The same number of blocks for each thread: for one that is left over, all others would wait.
        const int threads = std::max(1, run.threads), each = (piece.tokens + BLOCK * threads - 1) / (BLOCK * threads);
        size = std::min(BLOCK, up((piece.tokens + each * threads - 1) / (each * threads), 8));
        blocks = (piece.tokens + size - 1) / size;
        for (int step = 0; step < steps; step++) next[step] = 0, done[step] = 0;
        piece.prepare();
    }

    void join() override {
        if (done[steps - 1].load() >= blocks) return;
        Borrowed<Scratch> scratch(encoder.scratches);
        try {
            Worker<PRECISION> worker(piece, *scratch, nullptr);
            for (int step = 0; step < steps; step++) {
                for (int block; (block = next[step].fetch_add(1)) < blocks; done[step].fetch_add(1)) {
                    if (failed) continue;
                    try {
                        const int row = block * size, rows = std::min(size, piece.tokens - row);
                        step ? worker.layer(step - 1, row, rows) : worker.begin(row, rows);
                    } catch (const std::exception& error) {
                        fail(error.what());
                    } catch (...) {
                        fail("an unknown exception");
                    }
                }
                for (int turns = 0; done[step].load(std::memory_order_acquire) < blocks;) relax(turns);
            }
        } catch (const std::exception& error) {
            fail(error.what());
        }
    }
};

// A short call: one thread runs it, and shares the columns of each product and the heads of attention with the others.
// It never waits for a thread that has not begun a part, so that a busy machine delays it little.
struct Crew : Job, Sharing {
    std::shared_ptr<Encoder> owner;
    const int threads;
    // The turn, the number of its parts, and how many of them have begun: 32, 16 and 16 bits.
    std::atomic<uint64_t> ticket{0};
    std::atomic<int> done{0};
    std::atomic<bool> over{false};
    const Part* part = nullptr;  // this and the rest belong to the turn
    int all = 0, each = 0;

    Crew(std::shared_ptr<Encoder> owner, int threads) : owner(std::move(owner)), threads(threads) {}

    void share(int count, const Part& what, Scratch& own) override {
        part = &what, all = count, each = std::max(1, count / (3 * threads));
        const uint64_t parts = (count + each - 1) / each, turn = (ticket.load() >> 32) + 1;
        done.store(0);
        ticket.store(turn << 32 | parts << 16, std::memory_order_release);
        while (one_part(own)) {
        }
        for (int turns = 0; done.load(std::memory_order_acquire) < (int)parts;) relax(turns);
    }

    // Begin and finish a part; false if every part has begun.
    bool one_part(Scratch& scratch) {
        uint64_t now = ticket.load(std::memory_order_acquire);
        do {
            if ((now & 0xffff) >= (now >> 16 & 0xffff)) return false;
        } while (!ticket.compare_exchange_weak(now, now + 1, std::memory_order_acq_rel));
        const int first = (int)(now & 0xffff) * each;
        try {
            if (!failed) (*part)({first, std::min(first + each, all)}, scratch);
        } catch (const std::exception& error) {
            fail(error.what());
        } catch (...) {
            fail("an unknown exception");
        }
        done.fetch_add(1, std::memory_order_release);
        return true;
    }

    void join() override {
        Borrowed<Scratch> scratch(owner->scratches);
        for (int turns = 0; !over.load();) one_part(*scratch) ? (void)(turns = 0) : relax(turns);
    }
};

constexpr int CHUNK = 384;  // tokens of a chunk
constexpr int SHORT = 96;   // tokens of a call whose threads share columns instead of rows

thread_local std::string last_error;

int refuse(const std::string& why) {
    last_error = why;
    return 1;
}

int finished(Job& job) { return job.failed ? refuse(job.failure) : 0; }

template <int PRECISION>
int by_team(const std::shared_ptr<Encoder>& encoder, const NativeRun& run, int threads) {
    auto job = std::make_shared<Team<PRECISION>>(encoder, run);
    const int helpers = std::min(threads, job->blocks) - 1;
    if (helpers > 0) the_pool().offer(job, helpers);
    job->guarded();
    if (helpers > 0) the_pool().withdraw(job.get());
    // A helper may still be on its way out of the last step; it reads nothing of the run any more.
    return finished(*job);
}

int by_crew(const std::shared_ptr<Encoder>& encoder, const NativeRun& run, int threads) {
    auto job = std::make_shared<Crew>(encoder, threads);
    the_pool().offer(job, threads - 1);
    struct Dismissed {
        Crew* crew;
        ~Dismissed() {
            crew->over = true;
            the_pool().withdraw(crew);
        }
    } dismissed{job.get()};
    UseOfTiles tiles;
    Borrowed<Scratch> scratch(encoder->scratches);
    Borrowed<States> states(encoder->states);
    Piece piece{encoder.get(), &run, 0, run.sequences, 0, (int)run.offsets[run.sequences], &*states};
    piece.prepare();
    whole(piece, *scratch, job.get());
    return finished(*job);
}

int run(const std::shared_ptr<Encoder>& encoder, const NativeRun& run) {
    const int64_t tokens = run.offsets[run.sequences];
    const NativeEmbedding& embedding = encoder->embedding.spec;
    for (int64_t token = 0; token < tokens; token++) {
        if (run.ids[token] < 0 || run.ids[token] >= embedding.vocabulary)
            return refuse("token id " + std::to_string(run.ids[token]) + " is not in the vocabulary of " +
                          std::to_string(embedding.vocabulary));
        if (embedding.types && (run.segments[token] < 0 || run.segments[token] >= embedding.segments))
            return refuse("token type " + std::to_string(run.segments[token]) + " is not one of the encoder's " +
                          std::to_string(embedding.segments));
    }
    const int threads = run.threads;
    if (threads > 1 && tokens < SHORT) return by_crew(encoder, run, threads);
    std::vector<int64_t> cuts{0};
    int64_t most = 0;
    const int64_t share = std::max<int64_t>(64, std::min<int64_t>(CHUNK, tokens / (2 * threads)));
    for (int64_t s = 0; s < run.sequences; s++) {
        most = std::max(most, run.offsets[s + 1] - run.offsets[s]);
        if (run.offsets[s + 1] - run.offsets[cuts.back()] > share && s > cuts.back()) cuts.push_back(s);
    }
    cuts.push_back(run.sequences);
    const int count = (int)cuts.size() - 1;
    if (threads > 1 && (count < 2 * threads || most * threads > tokens || most > 4 * CHUNK)) {
        switch (encoder->precision) {
            case FLOAT32:
                return by_team<FLOAT32>(encoder, run, threads);
            case BFLOAT16:
                return by_team<BFLOAT16>(encoder, run, threads);
            default:
                return by_team<INT8>(encoder, run, threads);
        }
    }
    auto job = std::make_shared<Chunks>(encoder, run, std::move(cuts));
    const int helpers = std::min(threads, count) - 1;
    if (helpers > 0) the_pool().offer(job, helpers);
    job->guarded();
    job->wait();
    if (helpers > 0) the_pool().withdraw(job.get());
    return finished(*job);
}

// --- attention of a training step --------------------------------------------------------------------------------

// Which of LANES keys from j on are not dropped, from a hash of their places and of 64 bits for the query and head.
inline Ints not_dropped(uint64_t key, int j, int kept) {
    Bits x = same_bits<Bits>(COUNT + j) * 0x9e3779b9u + (uint32_t)key;
    x = (x ^ (x >> 16)) * 0x7feb352du ^ (uint32_t)(key >> 32);
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return same_bits<Ints>(x >> 16) < kept;
}

inline uint64_t mixed_bits(uint64_t x) {  // splitmix64 (Steele et al. 2014)
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// Rows as columns of a matrix whose rows are `ldt` apart; columns is a multiple of LANES, columns behind the last are 0.
inline void turn_all(const float* from, size_t stride, int rows, int columns, float* to, size_t ldt) {
    for (int j = 0; j < rows; j += LANES)
        for (int c = 0; c < columns; c += LANES)
            turn((const uint32_t*)from + j * stride + c, stride, std::min(LANES, rows - j),
                 (uint32_t*)to + c * ldt + j, ldt);
}

// One head of one sequence, forward or backward; the width of a head is a multiple of LANES.
struct TrainedAttention {
    const NativeAttention& a;
    Buffer keys, values, scores, slopes, turned;

    void run(int64_t sequence, int head) {
        const int64_t first = a.offsets[sequence];
        const int length = (int)(a.offsets[sequence + 1] - first), ldk = up(length, LANES), width = a.width;
        const size_t stride = a.stride, ldg = a.gradient_stride, ldm = (size_t)a.heads * width;
        const size_t at = first * stride + (size_t)head * width, to = first * ldg + (size_t)head * width;
        const float per = 1 / std::sqrt((float)width);
        float* key = keys.need<float>((size_t)width * ldk);
        turn_all(a.keys + at, stride, length, width, key, ldk);
        float* value = a.gradient ? values.need<float>((size_t)width * ldk) : nullptr;
        if (a.gradient) turn_all(a.values + at, stride, length, width, value, ldk);
        for (int row = 0; a.gradient && row < length; row++) {
            memset(a.d_keys + to + row * ldg, 0, sizeof(float) * width);
            memset(a.d_values + to + row * ldg, 0, sizeof(float) * width);
        }
        for (int place = 0; place < length; place += ROWS) {
            const int rows = std::min<int>(ROWS, length - place);
            // Keys that these queries read, from a multiple of LANES on.
            const int low = keys_of(place, length, a.radius).first / LANES * LANES;
            const int count = keys_of(place + rows - 1, length, a.radius).end - low, ldn = up(count, LANES);
            const size_t token = first + place, mixed_at = token * ldm + (size_t)head * width;
            const float *query = a.queries + at + place * stride, *some = a.keys + at + low * stride;
            float* score = scores.need<float>((size_t)ROWS * ldn);
            float* slope = a.gradient ? slopes.need<float>((size_t)ROWS * ldn) : nullptr;
            products[FLOAT32](rows, ldn, width, stride, ldk, ldn, false, query, key + low, score);
            if (a.gradient)
                products[FLOAT32](rows, ldn, width, ldm, ldk, ldn, false, a.gradient + mixed_at, value + low, slope);
            for (int row = 0; row < rows; row++) {
                const Range seen = keys_of(place + row, length, a.radius);
                const Range here{seen.first - low, seen.end - low};
                const size_t number = (token + row) * a.heads + head, place_at = mixed_at + row * ldm;
                if (!a.gradient) {
                    forward(score + (size_t)row * ldn, ldn, per, here, number);
                    continue;
                }
                Floats both{};  // the sum of probabilities times their gradients
                for (int c = 0; c < width; c += LANES) both += load(a.gradient + place_at + c) * load(a.mixed + place_at + c);
                backward(score + (size_t)row * ldn, slope + (size_t)row * ldn, ldn, per, sum(both), here, number);
            }
            if (!a.gradient) {
                products[FLOAT32](rows, width, count, ldn, stride, ldm, false, score, a.values + at + low * stride,
                                  a.mixed + mixed_at);
                continue;
            }
            const size_t keys_at = to + low * ldg;
            products[FLOAT32](rows, width, count, ldn, stride, ldg, false, slope, some, a.d_queries + to + place * ldg);
            const int ldr = up(rows, LANES);
            float* other = turned.need<float>((size_t)ldn * ldr);
            turn_all(slope, ldn, rows, ldn, other, ldr);
            products[FLOAT32](count, width, rows, ldr, stride, ldg, true, other, query, a.d_keys + keys_at);
            turn_all(score, ldn, rows, ldn, other, ldr);
            products[FLOAT32](count, width, rows, ldr, ldm, ldg, true, other, a.gradient + mixed_at,
                              a.d_values + keys_at);
        }
    }

   private:
    static constexpr int ROWS = 64;  // queries at a time

    // Scores to probabilities, of which some are dropped.
    void forward(float* score, int ldn, float per, Range seen, size_t query) {
        Floats peak = all(-INFINITY);
        for (int j = 0; j < ldn; j += LANES) {
            const Floats x = only(load(score + j) * per, seen.first - j, seen.end - j, -INFINITY);
            peak = larger(x, peak), store(score + j, x);
        }
        const float highest = largest(peak);
        Floats total{};
        for (int j = 0; j < ldn; j += LANES) {
            const Floats x = only(exponential(load(score + j) - highest), seen.first - j, seen.end - j, 0);
            total += x, store(score + j, x);
        }
        const float by = 1 / sum(total);
        a.softmax[2 * query] = highest, a.softmax[2 * query + 1] = by;
        const uint64_t key = mixed_bits(a.seed + query);
        for (int j = 0; j < ldn; j += LANES) store(score + j, load(score + j) * by * share(key, j));
    }

    // Scores to the same probabilities, and the gradients of those to gradients of products of queries and keys.
    void backward(float* score, float* slope, int ldn, float per, float both, Range seen, size_t query) {
        const float highest = a.softmax[2 * query], by = a.softmax[2 * query + 1];
        const uint64_t key = mixed_bits(a.seed + query);
        for (int j = 0; j < ldn; j += LANES) {
            const Floats p =
                only(exponential(load(score + j) * per - highest) * by, seen.first - j, seen.end - j, 0);
            const Floats times = share(key, j);
            store(score + j, p * times);
            store(slope + j, p * (load(slope + j) * times - both) * per);
        }
    }

    // 1 / the kept share, or 0 where a probability is dropped.
    Floats share(uint64_t key, int j) const {
        if (a.kept == 65536) return all(1);
        return not_dropped(key, j, a.kept) ? all(65536.0f / (float)a.kept) : Floats{};
    }
};

// Every head of every sequence, by any number of threads.
// Parts that do not depend on each other; a thread takes the next one.
struct Parts : Job {
    std::atomic<int64_t> next{0}, done{0};
    const int64_t count;

    explicit Parts(int64_t count) : count(count) {}
    // A part that fails counts, too, so that nobody waits for it.
    template <class Work>
    void each(const Work& work) {
        for (int64_t part = next.fetch_add(1); part < count; part = next.fetch_add(1)) {
            try {
                if (!failed) work(part);
            } catch (const std::exception& error) {
                fail(error.what());
            }
            done.fetch_add(1, std::memory_order_release);
        }
    }
    void wait() {
        for (int turns = 0; done.load(std::memory_order_acquire) < count;) relax(turns);
    }
};

struct TrainedHeads : Parts {
    const NativeAttention a;  // a helper may look at it after the call has returned

    explicit TrainedHeads(const NativeAttention& a) : Parts(a.sequences * a.heads), a(a) {}
    void join() override {
        TrainedAttention work{a};
        each([&](int64_t item) { work.run(item / a.heads, (int)(item % a.heads)); });
    }
};

// --- residuals of a training step ------------------------------------------------------------------------------

struct TrainedAddNorm : Parts {
    const NativeAddNorm a;  // a helper may look at it after the call has returned

    explicit TrainedAddNorm(const NativeAddNorm& a) : Parts((a.rows + a.share - 1) / a.share), a(a) {}
    void join() override {
        each([&](int64_t item) {
            if (a.gradient) memset(a.d_norm + 2 * item * a.width, 0, 2 * sizeof(float) * a.width);
            for (int64_t row = item * a.share; row < std::min(a.rows, (item + 1) * a.share); row++)
                a.gradient ? backward(row, a.d_norm + 2 * item * a.width) : forward(row);
        });
    }

   private:
    Floats times(uint64_t key, int c) const {
        if (a.kept == 65536) return all(1);
        return not_dropped(key, c, a.kept) ? all(65536.0f / (float)a.kept) : Floats{};
    }

    void forward(int64_t row) {
        const size_t at = (size_t)row * a.width;
        const uint64_t key = mixed_bits(a.seed + row);
        Floats total{}, squares{};
        for (int c = 0; c < a.width; c += LANES) {
            const Floats h = a.halves ? from_bfloat16((const uint16_t*)a.h + at + c) : load((const float*)a.h + at + c);
            const Floats sum = load(a.x + at + c) + h * times(key, c);
            store(a.sums + at + c, sum);
            total += sum;
        }
        const float mean = sum(total) / a.width;
        for (int c = 0; c < a.width; c += LANES) {
            const Floats far = load(a.sums + at + c) - mean;
            squares += far * far;
        }
        const float by = 1 / std::sqrt(sum(squares) / a.width + a.eps);
        a.moments[2 * row] = mean, a.moments[2 * row + 1] = by;
        for (int c = 0; c < a.width; c += LANES)
            store(a.results + at + c, (load(a.sums + at + c) - mean) * by * load(a.weight + c) + load(a.bias + c));
    }

    void backward(int64_t row, float* d_norm) {
        const size_t at = (size_t)row * a.width;
        const uint64_t key = mixed_bits(a.seed + row);
        const float mean = a.moments[2 * row], by = a.moments[2 * row + 1];
        Floats first{}, second{};
        for (int c = 0; c < a.width; c += LANES) {
            const Floats normal = (load(a.sums + at + c) - mean) * by, given = load(a.gradient + at + c);
            store(d_norm + c, load(d_norm + c) + given * normal);
            store(d_norm + a.width + c, load(d_norm + a.width + c) + given);
            const Floats slope = given * load(a.weight + c);
            first += slope, second += slope * normal;
        }
        const float m = sum(first) / a.width, n = sum(second) / a.width;
        for (int c = 0; c < a.width; c += LANES) {
            const Floats normal = (load(a.sums + at + c) - mean) * by;
            const Floats d = by * (load(a.gradient + at + c) * load(a.weight + c) - m - normal * n);
            store(a.d_x + at + c, d);
            const Floats dh = d * times(key, c);
            if (a.halves) {
                const Halves half = to_bfloat16(dh);
                memcpy((uint16_t*)a.d_h + at + c, &half, sizeof half);
            } else {
                store((float*)a.d_h + at + c, dh);
            }
        }
    }
};

// --- search by the vectors of tokens --------------------------------------------------------------------------------

inline Floats from_half(const uint16_t* from) {
    const Bits bits = __builtin_convertvector(vector_at<Halves>(from), Bits);
    // A float16's exponent and mantissa at their place in a float, 112 powers of two too small.
    const Floats small = same_bits<Floats>((bits & 0x7fffu) << 13) * 5.192296858534828e33f;
    const Bits endless = same_bits<Bits>((bits & 0x7c00u) == 0x7c00u) & 0x7f800000u;  // infinite, or no number
    return same_bits<Floats>(same_bits<Bits>(small) | endless | (bits & 0x8000u) << 16);
}

// The sum over the vectors of a query of the largest product with a vector of a passage, for some passages.
struct MaxSim : Parts {
    static constexpr int TOKENS = LANES == 8 ? 4 : 8, VECTORS = 2;  // products that are summed in registers
    static constexpr int64_t SHARE = 8;                             // passages of a part

    const NativeMaxSim a;
    const int padded, groups;  // numbers of a vector in whole registers; groups of VECTORS registers of queries
    std::vector<float> by_feature;  // (groups, width, VECTORS * LANES): queries, 0 behind the last one

    explicit MaxSim(const NativeMaxSim& a)
        : Parts((a.chosen + SHARE - 1) / SHARE), a(a), padded(up(std::max(a.width, a.bytes * a.in_byte), LANES)),
          groups((a.count + VECTORS * LANES - 1) / (VECTORS * LANES)) {
        by_feature.resize((size_t)groups * a.width * VECTORS * LANES);
        for (int query = 0; query < a.count; query++) {
            float* to = by_feature.data() + (size_t)query / (VECTORS * LANES) * a.width * VECTORS * LANES;
            for (int e = 0; e < a.width; e++)
                to[e * VECTORS * LANES + query % (VECTORS * LANES)] = a.queries[(size_t)query * a.width + e];
        }
    }
    void join() override {
        std::vector<float> rows, best;
        each([&](int64_t part) {
            rows.resize((size_t)TOKENS * padded), best.resize((size_t)groups * VECTORS * LANES);
            for (int64_t i = part * SHARE; i < std::min(a.chosen, (part + 1) * SHARE); i++) {
                a.scores[i] = score(a.offsets[a.passages[i]], a.offsets[a.passages[i] + 1], rows.data(), best.data());
                if (a.each) memcpy(a.each + i * a.count, best.data(), sizeof(float) * a.count);
            }
        });
    }

  private:
    // A vector in float32, not yet of length 1 if it was encoded; what its products are multiplied with for that.
    float decode(int64_t vector, float* to) const {
        if (a.halves) {
            const uint16_t* from = a.halves + vector * a.width;
            int e = 0;
            for (; e + LANES <= a.width; e += LANES) store(to + e, from_half(from + e));
            if (e < a.width) {
                uint16_t rest[LANES] = {};
                memcpy(rest, from + e, sizeof(uint16_t) * (a.width - e));
                store(to + e, from_half(rest));
            }
            return 1;
        }
        const uint8_t* from = a.residuals + vector * a.bytes;
        switch (a.in_byte) {
            case 2: spread<2>(from, to); break;
            case 4: spread<4>(from, to); break;
            default: spread<8>(from, to);
        }
        const float* centroid = a.centroids + (size_t)a.codes[vector] * a.width;
        Floats squares{};
        int e = 0;
        for (; e + LANES <= a.width; e += LANES) {
            const Floats x = load(to + e) + load(centroid + e);
            store(to + e, x);
            squares += x * x;
        }
        float length = sum(squares);
        for (; e < a.width; e++) {
            to[e] += centroid[e];
            length += to[e] * to[e];
        }
        return 1 / std::max(std::sqrt(length), 1e-12f);
    }

    template <int IN_BYTE>
    void spread(const uint8_t* from, float* to) const {
        for (int i = 0; i < a.bytes; i++) memcpy(to + i * IN_BYTE, a.of_byte + from[i] * IN_BYTE, 4 * IN_BYTE);
    }

    float score(int64_t first, int64_t end, float* rows, float* best) const {
        for (int i = 0; i < groups * VECTORS * LANES; i++) best[i] = -INFINITY;
        if (first >= end) return -INFINITY;
        for (int64_t token = first; token < end; token += TOKENS) {
            float by[TOKENS];
            // The last vector is repeated, which changes no maximum.
            for (int t = 0; t < TOKENS; t++) by[t] = decode(std::min(token + t, end - 1), rows + t * padded);
            for (int group = 0; group < groups; group++) {
                const float* queries = by_feature.data() + (size_t)group * a.width * VECTORS * LANES;
                Floats sums[TOKENS][VECTORS] = {};
                for (int e = 0; e < a.width; e++) {
                    Floats query[VECTORS];
                    for (int v = 0; v < VECTORS; v++) query[v] = load(queries + (e * VECTORS + v) * LANES);
                    for (int t = 0; t < TOKENS; t++)
                        for (int v = 0; v < VECTORS; v++) sums[t][v] += query[v] * rows[t * padded + e];
                }
                for (int v = 0; v < VECTORS; v++) {
                    float* to = best + (group * VECTORS + v) * LANES;
                    Floats high = load(to);
                    for (int t = 0; t < TOKENS; t++) {
                        const Floats x = sums[t][v] * by[t];
                        high = (x > high) | (x != x) ? x : high;  // a NaN reaches the score
                    }
                    store(to, high);
                }
            }
        }
        double total = 0;
        for (int query = 0; query < a.count; query++) total += best[query];
        return (float)total;
    }
};

// For every passage the sum over a query's vectors of the largest product with a centroid of its tokens among the
// nearest, or of the smallest of these where it has none of them. A part is some passages of a segment.
struct Proposal : Parts {
    static constexpr int64_t SHARE = 16384;  // passages of a part, whose sums stay in the cache

    const NativeProposal a;
    std::vector<std::pair<float, int>> nearest;  // (count, probes), from the smallest product to the largest

    explicit Proposal(const NativeProposal& a) : Parts(parts_of(a)), a(a), nearest((size_t)a.count * a.probes) {
        for (int query = 0; query < a.count; query++) choose(query);
    }
    void join() override {
        std::vector<float> best;
        each([&](int64_t part) {
            best.resize(SHARE);
            int segment = 0;
            for (; part >= parts_in(a, segment); segment++) part -= parts_in(a, segment);
            add(segment, part * SHARE, std::min(size(a, segment), (part + 1) * SHARE), best.data());
        });
    }

  private:
    static int64_t size(const NativeProposal& a, int segment) { return a.starts[segment + 1] - a.starts[segment]; }
    static int64_t parts_in(const NativeProposal& a, int segment) { return (size(a, segment) + SHARE - 1) / SHARE; }
    static int64_t parts_of(const NativeProposal& a) {
        int64_t all = 0;
        for (int segment = 0; segment < a.segments; segment++) all += parts_in(a, segment);
        return all;
    }

    void choose(int query) {
        const float* products = a.products + (size_t)query * a.centroids;
        std::pair<float, int>* to = nearest.data() + (size_t)query * a.probes;
        const auto larger_first = std::greater<std::pair<float, int>>();  // so that a heap's first is the smallest
        for (int k = 0; k < a.probes; k++) to[k] = {products[k], k};
        std::make_heap(to, to + a.probes, larger_first);
        for (int k = a.probes; k < a.centroids; k++)
            if (products[k] > to->first) {
                std::pop_heap(to, to + a.probes, larger_first);
                to[a.probes - 1] = {products[k], k};
                std::push_heap(to, to + a.probes, larger_first);
            }
        std::sort(to, to + a.probes);
    }

    void add(int segment, int64_t first, int64_t last, float* best) const {
        const int64_t* borders = a.borders[segment];
        const int32_t* passages = a.passages[segment];
        const int64_t size = last - first;
        double* totals = a.totals + a.starts[segment] + first;
        std::fill(totals, totals + size, 0.0);
        for (int query = 0; query < a.count; query++) {
            const std::pair<float, int>* probe = nearest.data() + (size_t)query * a.probes;
            std::fill(best, best + size, probe->first);
            for (int i = 0; i < a.probes; i++) {
                const int32_t* end = passages + borders[probe[i].second + 1];
                const int32_t* at = passages + borders[probe[i].second];
                if (first) at = std::lower_bound(at, end, (int32_t)first);
                for (; at < end && *at < last; at++) best[*at - first] = probe[i].first;
            }
            for (int64_t i = 0; i < size; i++) totals[i] += best[i];
        }
    }
};

// How near the codes of vectors are to a query, for all of them.
struct Near : Parts {
    static constexpr int64_t SHARE = 4096;  // rows of a part

    const NativeNear a;

    explicit Near(const NativeNear& a) : Parts((a.rows + SHARE - 1) / SHARE), a(a) {}
    void join() override {
        each([&](int64_t part) {
            for (int64_t row = part * SHARE; row < std::min(a.rows, (part + 1) * SHARE); row++)
                a.weighted ? multiply(row) : compare(row);
        });
    }

  private:
    void multiply(int64_t row) const {
        const uint8_t* from = a.codes + row * a.bytes;
        Floats even{}, odd{};
        int e = 0;
        const auto product = [&](int at) {
            // In two steps, for GCC converts byte by byte what grows to four times its size.
            const Halves numbers = __builtin_convertvector(vector_at<Bytes>(from + at), Halves);
            return __builtin_convertvector(__builtin_convertvector(numbers, Ints), Floats) * load(a.weighted + at);
        };
        for (; e + 2 * LANES <= a.width; e += 2 * LANES) even += product(e), odd += product(e + LANES);
        if (e + LANES <= a.width) even += product(e), e += LANES;
        float total = sum(even + odd);
        for (; e < a.width; e++) total += (float)from[e] * a.weighted[e];
        a.products[row] = total;
    }

    void compare(int64_t row) const {
        int differ = 0;
        for (int word = 0; word < a.bytes / 8; word++) {
            uint64_t bits;
            memcpy(&bits, a.codes + row * a.bytes + 8 * word, 8);
            differ += __builtin_popcountll(bits ^ a.asked[word]);
        }
        a.agreement[row] = (int16_t)-differ;
    }
};

// The row of a table with the largest product with each of many vectors, the first of those that are equal. Both factors
// are rounded to int8, with a scale for each vector and row.
struct Nearest : Parts {
    const NativeNearest a;
    Linear table;

    explicit Nearest(const NativeNearest& a) : Parts((a.count + AT_ONCE - 1) / AT_ONCE), a(a) {
        table.pack(INT8, a.table, nullptr, a.rows, a.width);
        // What fills the last panel is never the largest.
        for (int row = a.rows; row < table.panels * PANEL; row++) table.bias.as<float>()[row] = -INFINITY;
    }
    void join() override {
        const int stride = up(a.width, LANES);
        Buffer vector, operand, tile, largest, places;
        float* x = vector.need<float>(stride);
        LeftByte* left = operand.need<LeftByte>((size_t)AT_ONCE * stride);
        float* most = largest.need<float>(AT_ONCE * LANES);
        int32_t* place = places.need<int32_t>(AT_ONCE * LANES);
        tile.need<int32_t>(AT_ONCE * PANEL);
        each([&](int64_t part) {
            const int64_t first = part * AT_ONCE;
            const int count = (int)std::min<int64_t>(AT_ONCE, a.count - first);
            for (int i = 0; i < count; i++) {
                float step;  // of a whole vector, which changes no order
                memcpy(x, a.vectors + (first + i) * a.width, sizeof(float) * a.width);
                to_operand<INT8>(x, a.width, left + (size_t)i * stride, &step, -1);
            }
            std::fill(most, most + count * LANES, -INFINITY), memset(place, 0, sizeof(int32_t) * count * LANES);
            for (int panel = 0; panel < table.panels; panel++) {
                const int8_t* right = table.weight.as<int8_t>() + (size_t)panel * table.depth * PANEL;
                products[INT8](count, PANEL, table.depth, stride, PANEL, PANEL, false, left, right, tile.at);
                for (int i = 0; i < count; i++)
                    raise(tile.as<int32_t>() + i * PANEL, panel * PANEL, most + i * LANES, place + i * LANES);
            }
            for (int i = 0; i < count; i++) a.nearest[first + i] = best(most + i * LANES, place + i * LANES);
        });
    }

  private:
    // The largest product of each lane so far, and its row.
    void raise(const int32_t* tile, int row, float* most, int32_t* place) const {
        Floats high = load(most);
        Ints at = vector_at<Ints>(place);
        for (int j = 0; j < PANEL; j += LANES, row += LANES) {
            const Floats exact =
                __builtin_convertvector(vector_at<Ints>(tile + j), Floats) - load(table.sums.as<float>() + row);
            const Floats x = exact * load(table.scales.as<float>() + row) + load(table.bias.as<float>() + row);
            at = x > high ? Ints{} + row : at;
            high = larger(x, high);
        }
        store(most, high);
        memcpy(place, &at, sizeof at);
    }

    static int32_t best(const float* most, const int32_t* place) {
        int chosen = 0;
        for (int lane = 1; lane < LANES; lane++)
            if (most[lane] > most[chosen] || (most[lane] == most[chosen] && place[lane] + lane < place[chosen] + chosen))
                chosen = lane;
        return place[chosen] + chosen;
    }
};

// A job that threads share, whose parts are independent.
template <class Work, class What>
int shared_by(const What& what) {
    try {
        auto job = std::make_shared<Work>(what);
        const int helpers = (int)std::min<int64_t>(what.threads, job->count) - 1;
        if (helpers > 0) the_pool().offer(job, helpers);
        job->guarded();
        job->wait();
        if (helpers > 0) the_pool().withdraw(job.get());
        return finished(*job);
    } catch (const std::exception& error) {
        return refuse(error.what());
    }
}

// Whether products of a precision are exact where their result is known, for every number of rows and vectors of a tile,
// and of tiles of AMX, with features behind the last whole one.
bool proved(int precision) {
    constexpr int M = 49, N = PANEL, K = 80;
    std::vector<float> weight(N * K);
    std::vector<int> left(M * K);
    // Whole numbers that every precision holds exactly; each row's largest is 127, so its int8 scale is 1. Two
    // neighboring products of the left ones as bytes, up to 255, exceed 16 bits, in which some processors add them.
    for (int i = 0; i < N * K; i++) weight[i] = i % K ? (float)((i * 7) % 255 - 127) : 127;
    for (int i = 0; i < M * K; i++) left[i] = (i * 5) % 255 - 127;
    Linear packed;
    packed.pack(precision, weight.data(), nullptr, N, K);
    std::vector<uint8_t> a(M * K * 4);
    for (int i = 0; i < M * K; i++) {
        const float x = (float)left[i];
        const uint16_t half = to_bfloat16(x);
        if (precision == FLOAT32) memcpy(a.data() + 4 * i, &x, 4);
        if (precision == BFLOAT16) memcpy(a.data() + 2 * i, &half, 2);
        if (precision == INT8) a[i] = (uint8_t)(left[i] + BYTE_OFFSET);
    }
    std::vector<double> exact(M * N);
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++)
            for (int k = 0; k < K; k++) exact[m * N + n] += left[m * K + k] * (double)weight[n * K + k];
    std::vector<float> c(M * N);
    auto right = [&](int rows) {
        for (int columns : {N, 3 * LANES}) {
            products[precision](rows, columns, K, K, N, N, false, a.data(), packed.weight.at, c.data());
            for (int m = 0; m < rows; m++)
                for (int n = 0; n < columns; n++) {
                    double computed = c[m * N + n];
                    if (precision == INT8) {
                        int32_t whole;
                        memcpy(&whole, &c[m * N + n], 4);
                        computed = (whole - (double)packed.sums.as<float>()[n]) * packed.scales.as<float>()[n];
                    }
                    if (!(std::fabs(computed - exact[m * N + n]) < 0.5)) return false;
                }
        }
        return true;
    };
    for (int rows = 1; rows < 2 * TILE_ROWS; rows++)
        if (!right(rows)) return false;
    for (int rows : {16, 17, 32, 33, 49})
        if (!right(rows)) return false;
    return true;
}

// Take the products for a processor whose instructions for sums of bytes (bit 1) and of bfloat16 (bit 2) may be used, and
// prove each precision; returns those proved, bits 1, 2 and 4.
int choose_products(int instructions) {
    products[FLOAT32] = product_of<ByFloats>;
    products[BFLOAT16] = product_of<ByHalves>;
    products[INT8] = product_of<ByBytes>;
    fast_halves = false;
#ifdef DOTS_OF_BYTES
    if (instructions & 1) products[INT8] = product_of<ByDotsOfBytes>;
#endif
#ifdef DOTS_OF_HALVES
    if (instructions & 2) products[BFLOAT16] = product_of<ByDotsOfHalves>, fast_halves = true;
#endif
#ifdef MATRIX_TILES
    if (instructions & 4 && may_use_tiles())
        products[INT8] = product_by_tiles<TilesOfBytes>, products[BFLOAT16] = product_by_tiles<TilesOfHalves>;
#endif
    UseOfTiles tiles;
    int right = 0;
    for (int precision = FLOAT32; precision <= INT8; precision++)
        if (proved(precision)) right |= 1 << precision;
    if (!(right >> BFLOAT16 & 1)) fast_halves = false;
    return right;
}

// --- statistics of attention -----------------------------------------------------------------------------------

// Everything that is measured of some rows of attention, while they are in the caches: each row is read for its largest
// score, then for its exponentials and what cells of columns add up to, and a few rows together for what keys receive.
class MeasuredRows {
   public:
    explicit MeasuredRows(const NativeRows& a) : a(a), count(a.columns / a.cell) {
        for (auto* each : {&sums, &moments, &weighted, &peaks}) each->resize(count);
        before.resize(count + 1);
        bounds.resize(2 * (a.bins + 1));
        best.resize(a.top_k), places.resize(a.top_k);
        to_cell.resize(up(a.cell, LANES));
        for (int j = 0; j < a.cell; j++) to_cell[j] = (float)j - 0.5f * (float)(a.cell - 1);
    }

    void run() {
        for (int head = 0; head < a.heads; head++)
            for (int first = 0; first < a.rows; first += TOGETHER) {
                const int end = std::min(first + TOGETHER, a.rows);
                for (int row = first; row < end; row++) one_row(head, row, row - first);
                columns(head, first, end);
            }
    }

   private:
    static constexpr int TOGETHER = 16;  // rows whose columns are summed together: they stay in the second cache
    static constexpr float LOWEST = -87.0f;

    const NativeRows& a;
    const int count;                                    // cells of the rows
    std::vector<double> sums, moments, weighted, peaks;  // of each cell, of a row
    std::vector<double> before, bounds;
    std::vector<float> best, to_cell;
    std::vector<int> places;
    float share[TOGETHER], by_norm[TOGETHER];

    float* scores(int head, int row) const { return a.scores + ((size_t)head * a.rows + row) * a.columns; }

    // NaN stays NaN.
    static Floats exponential_or_zero(Floats x) { return x < LOWEST ? all(0) : exponential(x); }

    void one_row(int head, int row, int slot) {
        float* s = scores(head, row);
        Floats peak = all(-INFINITY);
        int j = 0;
        for (; j + LANES <= a.columns; j += LANES) peak = larger(load(s + j), peak);
        float most = largest(peak);
        for (; j < a.columns; j++) most = s[j] > most ? s[j] : most;
        double mixed = 0, z = 0;
        const float* norms = a.norms + (size_t)head * a.padded + a.first_column;
        for (int cell = 0; cell < count; cell++) {
            float* x = s + (size_t)cell * a.cell;
            const float* norm = norms + (size_t)cell * a.cell;
            Floats total{}, moment{}, weight{}, product{}, high{};
            for (int j = 0; j < a.cell; j += LANES) {
                const bool whole = j + LANES <= a.cell;
                const Floats below = (whole ? load(x + j) : only(part(x + j, a.cell - j), 0, a.cell - j, -1e30f)) - most;
                const Floats e = exponential_or_zero(below);
                if (whole)
                    store(x + j, e);
                else
                    memcpy(x + j, &e, sizeof(float) * (a.cell - j));
                total += e, moment += e * load(to_cell.data() + j), product += e * below, high = larger(e, high);
                weight += e * (whole ? load(norm + j) : part(norm + j, a.cell - j));
            }
            sums[cell] = sum(total), moments[cell] = sum(moment), weighted[cell] = sum(weight);
            peaks[cell] = largest(high);
            mixed += sum(product), z += sums[cell];
        }
        const size_t query = (size_t)a.first_row + row, at = (size_t)head * a.tokens + query;
        const double by = 1 / z, log_z = std::log(z);
        a.lse[at] = most + log_z;
        const double entropy = std::max(0.0, log_z - mixed * by);
        a.entropy[at] = entropy;
        double norm_sum = 0;
        for (int cell = 0; cell < count; cell++) norm_sum += weighted[cell];
        norm_sum *= by;
        a.norm_sum[at] = norm_sum;
        const double per_norm = norm_sum > 0 ? 1 / norm_sum : 0;
        share[slot] = (float)by, by_norm[slot] = (float)(by * per_norm);
        maps(head, (int)query, by, per_norm);
        distances(head, (int)query, s, by);
        for (int step = -1; step <= 1; step++) {
            const int64_t key = (int64_t)query + step - a.first_column;
            const bool there = key >= 0 && key < a.columns && key + a.first_column < a.tokens;
            a.near_keys[3 * at + step + 1] = there ? s[key] * (float)by : 0;
        }
        strongest(s, at, (float)by);
        marked(head, (int)query, s, by, entropy);
    }

    // The first numbers of an array, as a vector whose other lanes are 0.
    static Floats part(const float* from, int some) {
        Floats x{};
        memcpy(&x, from, sizeof(float) * some);
        return x;
    }

    void maps(int head, int query, double by, double per_norm) {
        const size_t first = ((size_t)head * a.cells + query / a.cell) * a.cells + a.first_column / a.cell;
        for (int cell = 0; cell < count; cell++) {
            a.map_sum[first + cell] += sums[cell] * by;
            a.map_norm[first + cell] += weighted[cell] * by * per_norm;
            a.map_most[first + cell] = std::max(a.map_most[first + cell], (float)(peaks[cell] * by));
        }
    }

    // The mean distance of a row, and its attention by bins of distance.
    void distances(int head, int query, const float* e, double by) {
        double apart = 0;
        before[0] = 0;
        for (int cell = 0; cell < count; cell++) {
            const int first = a.first_column + cell * a.cell;
            before[cell + 1] = before[cell] + sums[cell];
            const double far = first + 0.5 * (a.cell - 1) - query;
            if (query >= first && query < first + a.cell)
                for (int j = 0; j < a.cell; j++) apart += (double)e[cell * a.cell + j] * std::abs(first + j - query);
            else
                apart += far > 0 ? sums[cell] * far + moments[cell] : -sums[cell] * far - moments[cell];
        }
        a.distance[(size_t)head * a.tokens + query] = apart * by;
        double* profile = a.profile + (size_t)head * a.bins;
        double right = until(query, e), left = 0;  // distance 0 is the query itself, which counts once
        for (int bin = 0; bin < a.bins; bin++) {
            const int64_t end = a.bin_edges[bin + 1];
            const double next = until(query + end, e), previous = until(query - end + 1, e);
            profile[bin] += ((next - right) + (bin ? left - previous : 0)) * by;
            right = next, left = previous;
        }
    }

    // The sum of a row up to a key.
    double until(int64_t key, const float* e) const {
        const int64_t inside = std::min<int64_t>(std::max<int64_t>(key - a.first_column, 0), a.columns);
        const int cell = (int)(inside / a.cell), rest = (int)(inside - (int64_t)cell * a.cell);
        if (!rest) return before[cell];
        const float* from = e + (size_t)cell * a.cell;
        Floats total{};
        int j = 0;
        for (; j + LANES <= rest; j += LANES) total += load(from + j);
        if (j < rest) total += part(from + j, rest - j);
        return before[cell] + sum(total);
    }

    // The keys with the largest exponentials, of equal ones the first. They are in cells whose peaks are among the
    // largest, as many as there are keys to find.
    void strongest(const float* e, size_t at, float by) {
        const int k = a.top_k;
        int known = 0;
        for (int cell = 0; cell < count; cell++) known = insert(known, (float)peaks[cell], cell);
        const float least = known == k ? best[k - 1] : 0;
        known = 0;
        for (int cell = 0; cell < count; cell++) {
            if ((float)peaks[cell] < least || peaks[cell] <= 0) continue;
            for (int j = cell * a.cell; j < (cell + 1) * a.cell; j++)
                if (e[j] >= least && e[j] > 0 && (known < k || e[j] > best[k - 1])) known = insert(known, e[j], j);
        }
        for (int i = 0; i < k; i++) {
            a.keys[at * k + i] = i < known ? places[i] + a.first_column : -1;
            a.weights[at * k + i] = i < known ? best[i] * by : 0;
        }
    }

    // One more among the `known` largest, behind those that are equal.
    int insert(int known, float x, int place) {
        const int k = a.top_k;
        if (known == k && x <= best[k - 1]) return known;
        int i = known < k ? known : k - 1;
        for (; i > 0 && best[i - 1] < x; i--) best[i] = best[i - 1], places[i] = places[i - 1];
        best[i] = x, places[i] = place;
        return std::min(known + 1, k);
    }

    bool inside(int64_t key) const { return key >= a.first_column && key < (int64_t)a.first_column + a.columns; }

    // Attention to tokens that are set aside, and by what is not: to punctuation, the first token and the same token.
    void marked(int head, int query, const float* e, double by, double entropy) {
        const size_t at = (size_t)head * a.tokens + query;
        const float* keys = e - a.first_column;
        double special = 0, apart = 0;
        int seen = 0;
        for (int i = 0; i < a.asides; i++) {
            if (!inside(a.aside[i])) continue;
            const double p = keys[a.aside[i]] * by;
            if (p <= 0) continue;
            special += p, apart -= p * std::log(p), seen++;
        }
        const double given = std::max(0.0, 1 - special);
        a.special[at] = special, a.special_keys[at] = seen;
        a.beyond_entropy[at] = given > 0 ? std::max(0.0, (entropy - apart) / given + std::log(given)) : 0;
        if (!a.kept[query]) return;
        double marks = 0, repeats = 0, only_repeats = 0;
        for (int i = 0; i < a.marks; i++)
            if (inside(a.mark[i])) marks += keys[a.mark[i]];
        for (int64_t i = a.id_first[query]; i < a.id_first[query] + a.id_count[query]; i++) {
            const int64_t key = a.by_id[i];
            if (key == query || !inside(key)) continue;
            repeats += keys[key];
            if (!a.named[key] && std::abs(key - query) > 1) only_repeats += keys[key];
        }
        a.mark_sum[head] += marks * by;
        a.repeat_sum[head] += repeats * by, a.only_repeat_sum[head] += only_repeats * by;
        if (a.kept[0] && inside(0)) a.first_sum[head] += keys[0] * by;
    }

    // What keys receive from the rows `first` to `end`.
    void columns(int head, int first, int end) {
        const int inside = std::min(a.columns, a.tokens - a.first_column);
        const size_t to = (size_t)head * a.tokens + a.first_column;
        const float* norms = a.norms + (size_t)head * a.padded + a.first_column;
        const float* rows = scores(head, first);
        for (int j = 0; j < inside; j += LANES) {
            const int some = std::min(LANES, inside - j);
            Floats received{}, weight{}, high{};
            for (int row = 0; row < end - first; row++) {
                const float* from = rows + (size_t)row * a.columns + j;
                const Floats e = some == LANES ? load(from) : part(from, some);
                const Floats p = e * share[row];
                received += p, weight += e * by_norm[row], high = larger(p, high);
            }
            float sums[LANES], weights[LANES], peaks[LANES];
            store(sums, received), store(weights, weight), store(peaks, high);
            for (int i = 0; i < some; i++) {
                a.received[to + j + i] += sums[i];
                a.received_norm[to + j + i] += (double)weights[i] * norms[j + i];
                a.most[to + j + i] = std::max(a.most[to + j + i], peaks[i]);
                if (a.first_column + j + i < a.first_row + first) a.causal[to + j + i] += sums[i];
            }
        }
        for (int key = a.first_row + first; key < a.first_row + end; key++)
            for (int row = key - a.first_row; row < end; row++)
                a.causal[(size_t)head * a.tokens + key] +=
                    (double)scores(head, row)[key - a.first_column] * share[row - first];
    }
};

}  // namespace

// --- the interface ---------------------------------------------------------------------------------------------

extern "C" {

EXPORT const char* native_error() { return last_error.c_str(); }

// See `instructions_here` and `choose_products`. The first call counts, for several threads may begin together.
ANY_PROCESSOR EXPORT int native_instructions() { return instructions_here(); }

EXPORT int native_connect(int instructions) {
    static const int right = choose_products(instructions);
    return right;
}

EXPORT void* native_new(const NativeEncoder* from) {
    try {
        auto made = std::make_shared<Encoder>();
        made->precision = from->precision, made->width = from->width;
        made->layers.assign(from->layer, from->layer + from->layers);
        made->weights.resize(from->sets);
        made->embedding.spec = from->embedding;
        const NativeEmbedding& embedding = from->embedding;
        made->embedding.norm.take(embedding.norm, embedding.project_first ? from->width : embedding.width);
        if (embedding.projection.rows)
            made->embedding.projection.pack(from->precision, embedding.projection.weight, embedding.projection.bias,
                                            embedding.projection.rows, embedding.projection.columns);
        made->final_norm.take(from->final_norm, from->width);
        return new std::shared_ptr<Encoder>(std::move(made));
    } catch (const std::exception& error) {
        refuse(error.what());
        return nullptr;
    }
}

// Pack one set of weights; a gated network's halves each begin at a panel.
EXPORT int native_weights(void* encoder, int set, const NativeWeights* from, int gated) {
    try {
        Encoder& to = **static_cast<std::shared_ptr<Encoder>*>(encoder);
        Weights& weights = to.weights.at(set);
        auto pack = [&](Linear& linear, const NativeLinear& one) {
            linear.pack(to.precision, one.weight, one.bias, one.rows, one.columns);
        };
        pack(weights.qkv, from->qkv);
        pack(weights.out, from->out);
        pack(weights.outer, from->outer);
        if (!gated) {
            pack(weights.inner, from->inner);
        } else {
            const NativeLinear& inner = from->inner;
            const int half = inner.rows / 2, padded = up(half, PANEL);
            std::vector<float> spread((size_t)2 * padded * inner.columns), bias(2 * padded);
            for (int part = 0; part < 2; part++) {
                memcpy(spread.data() + (size_t)part * padded * inner.columns,
                       inner.weight + (size_t)part * half * inner.columns, sizeof(float) * half * inner.columns);
                if (inner.bias) memcpy(bias.data() + part * padded, inner.bias + part * half, sizeof(float) * half);
            }
            weights.inner.pack(to.precision, spread.data(), bias.data(), 2 * padded, inner.columns);
        }
        for (const NativeLayer& layer : to.layers)
            if (layer.weights == set) {
                weights.distances.take(*from, layer, to.precision != FLOAT32);
                const int together = layer.heads_normed == 1 ? 1 : layer.heads;
                weights.query_norm.take(from->query_norm, together * layer.width);
                weights.key_norm.take(from->key_norm, (together == 1 ? 1 : layer.shared) * layer.width);
                break;
            }
        weights.attention_norm.take(from->attention_norm, to.width);
        weights.feedforward_norm.take(from->feedforward_norm, to.width);
        weights.attention_output_norm.take(from->attention_output_norm, to.width);
        weights.feedforward_output_norm.take(from->feedforward_output_norm, to.width);
        return 0;
    } catch (const std::exception& error) {
        return refuse(error.what());
    }
}

EXPORT int native_run(void* encoder, const NativeRun* what) {
    try {
        return run(*static_cast<std::shared_ptr<Encoder>*>(encoder), *what);
    } catch (const std::exception& error) {
        return refuse(error.what());
    } catch (...) {
        return refuse("an unknown exception");
    }
}

// Attention of a training step: mixed values, or with their gradient those of queries, keys and values.
EXPORT int native_attention(const NativeAttention* what) { return shared_by<TrainedHeads>(*what); }

// The end of a residual, or with the gradient of its results those of both terms and of the norm.
EXPORT int native_add_norm(const NativeAddNorm* what) { return shared_by<TrainedAddNorm>(*what); }

// Statistics of some rows of attention, by this thread.
EXPORT int native_rows(const NativeRows* what) {
    try {
        MeasuredRows(*what).run();
        return 0;
    } catch (const std::exception& error) {
        return refuse(error.what());
    }
}

// Scores of some passages by the vectors of their tokens.
EXPORT int native_maxsim(const NativeMaxSim* what) { return shared_by<MaxSim>(*what); }

// How likely passages are the best by `native_maxsim`, from centroids of their vectors.
EXPORT int native_proposal(const NativeProposal* what) { return shared_by<Proposal>(*what); }

// How near codes are to a query.
EXPORT int native_near(const NativeNear* what) { return shared_by<Near>(*what); }

// The nearest row of a table to each of many vectors.
EXPORT int native_nearest(const NativeNearest* what) { return shared_by<Nearest>(*what); }

EXPORT void native_free(void* encoder) { delete static_cast<std::shared_ptr<Encoder>*>(encoder); }
}

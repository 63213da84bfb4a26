// What an encoder's layers are computed with in a saved page, compiled to WebAssembly.
//
// Nothing here knows an architecture: `web/src/live/encoder.ts` calls these functions layer by layer, and gives places
// in this module's memory. The module imports nothing, allocates nothing and keeps nothing between calls, and there is no
// C library in it.
//
// Matrices are rows of float32. A weight (N, K) lies in panels: PANEL of its rows together, feature by feature, so that
// a product keeps a tile of its result in registers. The last panel is filled up with zeros.
//
// Axes: T tokens; D width; N outputs; K inputs, or the width of a head; H heads.

#include <stdint.h>

#define EXPORT(name) extern "C" __attribute__((export_name(#name)))

namespace {

typedef float Floats __attribute__((vector_size(16), aligned(4), may_alias));
typedef uint32_t Bits __attribute__((vector_size(16)));
constexpr int LANES = 4, PANEL = 2 * LANES, ROWS = 4;

inline Floats load(const float* from) { return *reinterpret_cast<const Floats*>(from); }

inline void store(float* to, Floats x) { *reinterpret_cast<Floats*>(to) = x; }

inline Floats all(float x) { return Floats{x, x, x, x}; }

inline Floats at_least(Floats x, float low) { return x < low ? all(low) : x; }

inline Floats at_most(Floats x, float high) { return x > high ? all(high) : x; }

// The functions are those of unmask/engines/native/engine.cpp: exp for x of at most 88, with a relative error of 2e-7, and
// erf with an absolute one of 1.5e-7.
inline Floats exponential(Floats x) {
    constexpr float ROUNDER = 12582912.0f;  // adding it rounds to a whole number, which the lowest bits then hold
    x = at_least(x, -87.0f);
    const Floats shifted = x * 1.44269504f + ROUNDER, n = shifted - ROUNDER;
    const Floats r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    Floats p = r * (1.0f / 720) + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * (Floats)(((Bits)shifted << 23) + 0x3f800000u);
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(at_most(-x, 88.0f))); }

// x (1 + erf(x / sqrt 2)) / 2, with erf by Abramowitz & Stegun 7.1.26.
inline Floats gelu(Floats x) {
    const Floats z = (x < 0.0f ? -x : x) * 0.70710678f, t = 1.0f / (1.0f + 0.3275911f * z);
    Floats p = t * 1.061405429f - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = (p * t + 0.254829592f) * t;
    const Floats tail = 0.5f * p * exponential(-z * z);
    return x * (x < 0.0f ? tail : 1.0f - tail);
}

enum Activation { GELU = 1, GELU_TANH, RELU, SILU, TANH };  // as in unmask/engines/native/interface.py

Floats activated(Floats x, int activation) {
    switch (activation) {
        case GELU: return gelu(x);
        case GELU_TANH: return x * sigmoid(1.5957691216f * (x + 0.044715f * x * x * x));
        case RELU: return at_least(x, 0.0f);
        case SILU: return x * sigmoid(x);
        default: return 2.0f * sigmoid(2.0f * x) - 1.0f;
    }
}

// Numbers of an array as vectors, each replaced by what `function` gives for it; the last vector is filled up with zeros.
template <class Function>
void each(float* x, int count, Function function) {
    int i = 0;
    for (; i + LANES <= count; i += LANES) store(x + i, function(load(x + i)));
    if (i == count) return;
    float rest[LANES] = {};
    for (int at = i; at < count; at++) rest[at - i] = x[at];
    store(rest, function(load(rest)));
    for (int at = i; at < count; at++) x[at] = rest[at - i];
}

// Panels of a weight whose element (row, column) is `value(row, column)`.
template <class Value>
void to_panels(int rows, int columns, float* panels, Value value) {
    for (int first = 0; first < rows; first += PANEL)
        for (int column = 0; column < columns; column++)
            for (int row = first; row < first + PANEL; row++) *panels++ = row < rows ? value(row, column) : 0.0f;
}

// COUNT rows of x times one panel.
template <int COUNT>
void tile(const float* x, int x_stride, const float* panel, int inputs, float sums[][PANEL]) {
    Floats low[COUNT] = {}, high[COUNT] = {};
    for (int k = 0; k < inputs; k++) {
        const Floats a = load(panel + k * PANEL), b = load(panel + k * PANEL + LANES);
        for (int row = 0; row < COUNT; row++) {
            const Floats at = all(x[row * x_stride + k]);
            low[row] += at * a;
            high[row] += at * b;
        }
    }
    for (int row = 0; row < COUNT; row++) {
        store(sums[row], low[row]);
        store(sums[row] + LANES, high[row]);
    }
}

// y_TN = x_TK w_NK^T + bias_N. `between` is the distance of two panels in floats: more than K times PANEL where only some
// of a weight's inputs are used.
void multiply(const float* x, int x_stride, int rows, const float* panels, int between, int inputs, const float* bias,
              float* y, int y_stride, int outputs) {
    float sums[ROWS][PANEL];
    for (int first = 0; first < outputs; first += PANEL, panels += between) {
        const int wide = outputs - first < PANEL ? outputs - first : PANEL;
        for (int row = 0; row < rows; row += ROWS) {
            const float* from = x + row * x_stride;
            const int count = rows - row < ROWS ? rows - row : ROWS;
            switch (count) {
                case 1: tile<1>(from, x_stride, panels, inputs, sums); break;
                case 2: tile<2>(from, x_stride, panels, inputs, sums); break;
                case 3: tile<3>(from, x_stride, panels, inputs, sums); break;
                default: tile<4>(from, x_stride, panels, inputs, sums);
            }
            for (int at = 0; at < count; at++)
                for (int n = 0; n < wide; n++)
                    y[(row + at) * y_stride + first + n] = sums[at][n] + (bias ? bias[first + n] : 0.0f);
        }
    }
}

// Scores of one query become probabilities; keys outside of first <= j < end have 0.
void softmax(float* scores, int count, int first, int end) {
    float largest = scores[first], sum = 0.0f;
    for (int j = first; j < end; j++) largest = scores[j] > largest ? scores[j] : largest;
    each(scores + first, end - first, [=](Floats x) { return exponential(x - largest); });
    for (int j = first; j < end; j++) sum += scores[j];
    for (int j = 0; j < count; j++) scores[j] = j < first || j >= end ? 0.0f : scores[j] / sum;
}

}  // namespace

// Panels of a float32 weight (N, K).
EXPORT(pack_floats) void pack_floats(const float* weight, int rows, int columns, float* panels) {
    to_panels(rows, columns, panels, [=](int row, int column) { return weight[row * columns + column]; });
}

// Panels of an int8 weight (N, K) with a scale for each row and each column.
EXPORT(pack_bytes)
void pack_bytes(const int8_t* weight, const float* of_rows, const float* of_columns, int rows, int columns,
                float* panels) {
    to_panels(rows, columns, panels, [=](int row, int column) {
        return weight[row * columns + column] * of_rows[row] * of_columns[column];
    });
}

// y_TN = x_TK w_NK^T + bias_N; `bias` may be null.
EXPORT(linear)
void linear(const float* x, int rows, const float* panels, int inputs, const float* bias, float* y, int outputs) {
    multiply(x, inputs, rows, panels, inputs * PANEL, inputs, bias, y, outputs, outputs);
}

// The norm of each row: of its difference from its mean if `centered`. `bias` may be null.
EXPORT(norm)
void norm(const float* x, int rows, int width, int centered, float eps, const float* weight, const float* bias,
          float* y) {
    for (int row = 0; row < rows; row++, x += width, y += width) {
        double mean = 0.0, square = 0.0;
        for (int d = 0; centered && d < width; d++) mean += x[d];
        mean /= width;
        for (int d = 0; d < width; d++) square += (x[d] - mean) * (x[d] - mean);
        const double scale = 1.0 / __builtin_sqrt(square / width + eps);
        for (int d = 0; d < width; d++)
            y[d] = float((x[d] - mean) * scale) * weight[d] + (bias ? bias[d] : 0.0f);
    }
}

// x += y.
EXPORT(add) void add(float* x, const float* y, int count) {
    for (int i = 0; i < count; i++) x[i] += y[i];
}

EXPORT(activate) void activate(float* x, int count, int activation) {
    each(x, count, [=](Floats values) { return activated(values, activation); });
}

// y_TF = activation(a) * b, of x_T2F = a | b. The halves a are replaced.
EXPORT(gate) void gate(float* x, int rows, int width, int activation, float* y) {
    for (int row = 0; row < rows; row++, x += 2 * width, y += width) {
        each(x, width, [=](Floats values) { return activated(values, activation); });
        for (int f = 0; f < width; f++) y[f] = x[f] * x[width + f];
    }
}

// Rotates the first 2 P features of `heads` heads of each row, whose angles have these cosines and sines, (T, P) each.
EXPORT(rotate)
void rotate(float* x, int stride, int rows, int heads, int head_width, int pairs, int interleaved, const float* cosines,
            const float* sines) {
    const int step = interleaved ? 2 : 1, apart = interleaved ? 1 : pairs;
    for (int row = 0; row < rows; row++, cosines += pairs, sines += pairs)
        for (int head = 0; head < heads; head++)
            for (int p = 0; p < pairs; p++) {
                float *a = x + row * stride + head * head_width + step * p, *b = a + apart, first = *a;
                *a = first * cosines[p] - *b * sines[p];
                *b = *b * cosines[p] + first * sines[p];
            }
}

// Attention of `heads` heads whose queries, keys and values lie in the rows of x, keys and values for `shared` heads.
// `radius`: how far a query sees on both sides; -1: everything; -2: up to itself. `biases`, which may be null, are added
// to scores by distance: for each head 2 `reach` - 1 numbers, of the distances key - query from 1 - `reach`.
// Probabilities are (H, T, T). `panels` is working memory of T PANEL-wide rows for a head's keys, and for its values.
EXPORT(attend)
void attend(const float* x, int rows, int heads, int shared, int width, float scale, int radius, const float* biases,
            int reach, float* panels, float* probabilities, float* mixed) {
    const int stride = (heads + 2 * shared) * width;
    for (int head = 0; head < heads; head++, probabilities += rows * rows) {
        const float *keys = x + (heads + head / (heads / shared)) * width, *values = keys + shared * width;
        to_panels(rows, width, panels, [=](int token, int k) { return keys[token * stride + k] * scale; });
        multiply(x + head * width, stride, rows, panels, width * PANEL, width, nullptr, probabilities, rows, rows);
        for (int i = 0; i < rows; i++) {
            float* scores = probabilities + i * rows;
            const int first = radius >= 0 && i > radius ? i - radius : 0;
            const int end = radius == -2 ? i + 1 : radius >= 0 && i + radius + 1 < rows ? i + radius + 1 : rows;
            if (biases)
                for (int j = 0; j < rows; j++) scores[j] += biases[head * (2 * reach - 1) + j - i + reach - 1];
            softmax(scores, rows, first, end);
        }
        to_panels(width, rows, panels, [=](int k, int token) { return values[token * stride + k]; });
        multiply(probabilities, rows, rows, panels, rows * PANEL, rows, nullptr, mixed + head * width, heads * width, width);
    }
}

// What a token adds where a head attends to it alone, as a norm: ||v W_O|| with the rows of W_O of the head, (H, T).
// `panels` are those of the output projection to `outputs` features; `added` is working memory, (T, outputs).
EXPORT(value_norms)
void value_norms(const float* x, int rows, int heads, int shared, int width, const float* panels, int outputs,
                 float* added, float* norms) {
    const int stride = (heads + 2 * shared) * width, inputs = heads * width;
    for (int head = 0; head < heads; head++) {
        const float* values = x + (heads + shared + head / (heads / shared)) * width;
        multiply(values, stride, rows, panels + head * width * PANEL, inputs * PANEL, width, nullptr, added, outputs,
                 outputs);
        for (int row = 0; row < rows; row++) {
            double square = 0.0;
            for (int d = 0; d < outputs; d++) square += double(added[row * outputs + d]) * added[row * outputs + d];
            *norms++ = float(__builtin_sqrt(square));
        }
    }
}

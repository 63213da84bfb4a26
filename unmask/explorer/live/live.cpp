// What an encoder's layers are computed with in a saved page, compiled to WebAssembly.
//
// Nothing here knows an architecture: `web/src/live/encoder.ts` calls these functions layer by layer, and gives places
// in this module's memory. The module imports nothing, allocates nothing and keeps nothing between calls.
//
// Matrices are rows of float32. A weight (N, K) lies in panels: PANEL of its rows together, feature by feature, so that
// a product keeps a tile of its result in registers. The last panel is filled up with zeros.
//
// Axes: T tokens; D width; N outputs; K inputs, or the width of a head; H heads.

#include <math.h>
#include <stdint.h>
#include <string.h>

#define EXPORT(name) extern "C" __attribute__((export_name(#name)))

namespace {

typedef float Floats __attribute__((vector_size(16)));
constexpr int LANES = 4, PANEL = 2 * LANES, ROWS = 4;

inline Floats load(const float* from) {
    Floats x;
    memcpy(&x, from, sizeof x);
    return x;
}

inline Floats all(float x) { return Floats{x, x, x, x}; }

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
        memcpy(sums[row], &low[row], sizeof low[row]);
        memcpy(sums[row] + LANES, &high[row], sizeof high[row]);
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

enum Activation { GELU = 1, GELU_TANH, RELU, SILU, TANH };  // as in unmask/engines/native/interface.py

float activated(float x, int activation) {
    switch (activation) {
        case GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678f));
        case GELU_TANH: return 0.5f * x * (1.0f + tanhf(0.79788456f * (x + 0.044715f * x * x * x)));
        case RELU: return x > 0.0f ? x : 0.0f;
        case SILU: return x / (1.0f + expf(-x));
        default: return tanhf(x);
    }
}

// Scores of one query become probabilities; keys outside of first <= j < end have 0.
void softmax(float* scores, int count, int first, int end) {
    float largest = scores[first], sum = 0.0f;
    for (int j = first; j < end; j++) largest = scores[j] > largest ? scores[j] : largest;
    for (int j = 0; j < count; j++) sum += scores[j] = j < first || j >= end ? 0.0f : expf(scores[j] - largest);
    for (int j = first; j < end; j++) scores[j] /= sum;
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
        const double scale = 1.0 / sqrt(square / width + eps);
        for (int d = 0; d < width; d++)
            y[d] = float((x[d] - mean) * scale) * weight[d] + (bias ? bias[d] : 0.0f);
    }
}

// x += y.
EXPORT(add) void add(float* x, const float* y, int count) {
    for (int i = 0; i < count; i++) x[i] += y[i];
}

EXPORT(activate) void activate(float* x, int count, int activation) {
    for (int i = 0; i < count; i++) x[i] = activated(x[i], activation);
}

// y_TF = activation(a) * b, of x_T2F = a | b.
EXPORT(gate) void gate(const float* x, int rows, int width, int activation, float* y) {
    for (int row = 0; row < rows; row++, x += 2 * width)
        for (int f = 0; f < width; f++) *y++ = activated(x[f], activation) * x[width + f];
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
            *norms++ = float(sqrt(square));
        }
    }
}

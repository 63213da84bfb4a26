"""The functions and structures of `engine.cpp`, for ctypes."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_float, c_int, c_int32, c_int64, c_uint64, c_void_p
from typing import Any, Final

PRECISIONS: Final = ("float32", "bfloat16", "int8")
"""In the order of their numbers."""

ACTIVATIONS: Final = {"gelu": 1, "gelu_tanh": 2, "relu": 3, "silu": 4, "tanh": 5}


class Norm(Structure):
    """0: none, 1: LayerNorm, 2: RMSNorm; its numbers."""

    _fields_ = (("kind", c_int32), ("eps", c_float), ("weight", c_void_p), ("bias", c_void_p))


class Linear(Structure):
    """A weight (rows, columns) and a bias; no rows for none."""

    _fields_ = (("rows", c_int32), ("columns", c_int32), ("weight", c_void_p), ("bias", c_void_p))


class Weights(Structure):
    """One set of weights of a layer."""

    _fields_ = (
        *((name, Linear) for name in ("qkv", "out", "inner", "outer")),
        *(
            (f"{name}_norm", Norm)
            for name in ("attention", "feedforward", "query", "key", "attention_output", "feedforward_output")
        ),
        *((name, c_void_p) for name in ("distance_keys", "distance_queries")),
        ("distance_rows", c_int32),
    )


class Layer(Structure):
    """What a layer is besides its weights."""

    _fields_ = tuple(
        (name, c_int32)
        for name in (
            "weights",
            "norm_first",
            "gated",
            "activation",
            "heads",
            "shared",
            "width",
            "rotation",
            "distances",
            "parts",
            "heads_normed",
            "output_norms",
        )
    )


class Embedding(Structure):
    """The tables, and what follows them."""

    _fields_ = (
        *((name, c_int32) for name in ("vocabulary", "width", "offset", "segments", "stored")),
        *((name, c_void_p) for name in ("words", "places", "types")),
        ("scale", c_float),
        ("norm", Norm),
        ("projection", Linear),
        ("project_first", c_int32),
    )


class Encoder(Structure):
    """All that a new encoder is made of."""

    _fields_ = (
        *((name, c_int32) for name in ("precision", "width", "layers", "sets")),
        ("layer", POINTER(Layer)),
        ("weights", POINTER(Weights)),
        ("embedding", Embedding),
        ("final_norm", Norm),
    )


class Table(Structure):
    """Rotations by position, or terms by distance."""

    _fields_ = (("values", c_void_p), ("sines", c_void_p), ("columns", c_int32), ("middle", c_int32))


class Run(Structure):
    """One batch, and where its states go."""

    _fields_ = (
        *((name, c_void_p) for name in ("ids", "segments", "offsets")),
        ("sequences", c_int64),
        ("radius", c_void_p),
        ("rotations", POINTER(Table)),
        ("distances", POINTER(Table)),
        ("states", c_void_p),
        ("threads", c_int32),
        ("places", c_void_p),
    )


class Attention(Structure):
    """Attention of a training step."""

    _fields_ = (
        *(
            (name, c_void_p)
            for name in (
                *("queries", "keys", "values", "mixed", "softmax", "gradient"),
                *("d_queries", "d_keys", "d_values", "offsets"),
            )
        ),
        *((name, c_int64) for name in ("sequences", "stride", "gradient_stride")),
        ("seed", c_uint64),
        *((name, c_int32) for name in ("heads", "width", "radius", "kept", "threads")),
    )


class AddNorm(Structure):
    """The end of a residual in a training step."""

    _fields_ = (
        *(
            (name, c_void_p)
            for name in (
                *("x", "h", "weight", "bias", "sums", "results", "moments", "gradient"),
                *("d_x", "d_h", "d_norm"),
            )
        ),
        ("rows", c_int64),
        ("seed", c_uint64),
        *((name, c_int32) for name in ("width", "halves", "kept", "threads", "share")),
        ("eps", c_float),
    )


class Rows(Structure):
    """Some rows of attention, and where their statistics go."""

    _fields_ = (
        *(
            (name, c_void_p)
            for name in (
                *("scores", "norms", "lse", "entropy", "distance", "norm_sum", "special", "beyond_entropy"),
                *("received", "causal", "received_norm", "profile", "map_sum", "map_norm"),
                *("repeat_sum", "only_repeat_sum", "mark_sum", "first_sum"),
                *("most", "near_keys", "map_most", "weights", "special_keys", "keys"),
                *("bin_edges", "by_id", "id_first", "id_count", "aside", "mark", "kept", "named"),
            )
        ),
        *(
            (name, c_int32)
            for name in (
                *("heads", "rows", "columns", "first_row", "first_column", "tokens", "padded"),
                *("cell", "cells", "top_k", "bins", "asides", "marks"),
            )
        ),
    )


class MaxSim(Structure):
    """Vectors of tokens, and the passages that a query's vectors are compared with."""

    _fields_ = (
        *(
            (name, c_void_p)
            for name in (
                *("queries", "halves", "codes", "residuals", "centroids", "of_byte"),
                *("offsets", "passages", "scores", "each"),
            )
        ),
        ("chosen", c_int64),
        *((name, c_int32) for name in ("count", "width", "bytes", "in_byte", "threads")),
    )


class Proposal(Structure):
    """Products of a query's vectors with centroids, and the passages that have a token of each."""

    _fields_ = (
        ("products", c_void_p),
        ("borders", POINTER(c_void_p)),
        ("passages", POINTER(c_void_p)),
        *((name, c_void_p) for name in ("starts", "totals")),
        *((name, c_int32) for name in ("count", "centroids", "probes", "segments", "threads")),
    )


class Near(Structure):
    """Codes of vectors, and what they are compared with."""

    _fields_ = (
        *((name, c_void_p) for name in ("codes", "weighted", "asked", "products", "agreement")),
        ("rows", c_int64),
        *((name, c_int32) for name in ("width", "bytes", "threads")),
    )


class Nearest(Structure):
    """Vectors, and a table of which each gets the row with the largest product."""

    _fields_ = (
        *((name, c_void_p) for name in ("vectors", "table", "nearest")),
        ("count", c_int64),
        *((name, c_int32) for name in ("rows", "width", "threads")),
    )


def declare(library: ctypes.CDLL) -> Any:
    """Declare the types of a library's functions."""
    for name, result, arguments in (
        ("native_error", c_char_p, ()),
        ("native_instructions", c_int, ()),
        ("native_connect", c_int, (c_int,)),
        ("native_new", c_void_p, (POINTER(Encoder),)),
        ("native_weights", c_int, (c_void_p, c_int, POINTER(Weights), c_int)),
        ("native_run", c_int, (c_void_p, POINTER(Run))),
        ("native_attention", c_int, (POINTER(Attention),)),
        ("native_add_norm", c_int, (POINTER(AddNorm),)),
        ("native_rows", c_int, (POINTER(Rows),)),
        ("native_maxsim", c_int, (POINTER(MaxSim),)),
        ("native_proposal", c_int, (POINTER(Proposal),)),
        ("native_near", c_int, (POINTER(Near),)),
        ("native_nearest", c_int, (POINTER(Nearest),)),
        ("native_free", None, (c_void_p,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library

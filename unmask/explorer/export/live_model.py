"""A model as bytes for a page that computes: its weights, its tokenizer and the module that runs them.

`web/src/live` reads them. Weights are float32, or int8 with a scale for each row and column; either way the
page computes in float32.
"""

import json
import math
import zlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import normalizers, pre_tokenizers

from unmask.base.arguments import check_choice
from unmask.engines.native.interface import ACTIVATIONS
from unmask.engines.native.parts import Float32s, Weights
from unmask.engines.native.program import ALL, BEFORE, qkv_bias, unsupported_encoder
from unmask.engines.native.tables import PositionTables
from unmask.errors import InvalidRequest, UnknownArchitecture
from unmask.explorer.wire.binary import pack
from unmask.spec import (
    AttentionPattern,
    CausalAttention,
    Disentangled,
    EncoderSpec,
    FullAttention,
    GatedFeedForward,
    Layer,
    LayerNorm,
    NoNorm,
    Norm,
    RelativePositionBias,
    RMSNorm,
    Rotary,
    SlidingWindow,
    SoftmaxAttention,
)
from unmask.text import Tokenizer

if TYPE_CHECKING:
    from unmask.models.model import Model

LIVE = Path(__file__).parents[1] / "live"
"""The module and the script of a page that computes, see `scripts/live.py`."""

LiveWeights = Literal["int8", "float32"]

MOST_CELLS = 1 << 24
"""Attention weights of a text, all heads together: 64 MB in the page."""

MOST_CHARACTERS = 400_000_000
"""Of the written model: browsers hold no string of 2 ** 29 characters."""

PARTS = ("embedding.", "layers.", "final_norm.")
"""What the page computes; not heads, and not the table of distances, of which it has the terms."""

NORMALIZERS = ("BertNormalizer", "NFC", "NFD", "Lowercase")
"""Others depend on tables that browsers have of another version of Unicode."""
BEYOND_BYTES = ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout")
"""Settings of BPE models that byte-level ones do not have."""
SPLITTERS = ("BertPreTokenizer", "ByteLevel")


def live_model(model: "Model", weights: LiveWeights = "int8", *, index: int = 0) -> str:
    """The model as `as_text` of a deflated container, see `unmask.explorer.wire.binary`.

    Args:
        model: an encoder with softmax attention over ranges of keys, with WordPiece or byte-level BPE.
        weights: how matrices are stored.
        index: the model's number in the page.

    Raises:
        UnknownArchitecture: a page cannot compute this encoder, or read texts with its tokenizer.
        InvalidRequest: the model is larger than a page can hold.
    """
    check_choice("weights", weights, get_args(LiveWeights))
    spec = model.spec
    reason = unsupported_in_page(spec)
    if reason is not None:
        raise UnknownArchitecture(
            f"{model.name} cannot compute in a page because {reason}; save the page without the model"
        )
    limit = live_tokens(spec, model.max_tokens)
    encoder = model.trainable_encoder(replace=False)
    tensors = {name: tensor.float().numpy() for name, tensor in encoder.state_dict().items()}
    arrays: dict[str, NDArray[Any]] = {"module": np.frombuffer((LIVE / "live.wasm").read_bytes(), np.uint8)}
    tables, distances = _distances(spec, tensors)
    terms = {f"distances.{number}": tables.terms(number, limit) for number in set(distances) - {NO_TABLE}}
    for name, values in (_tensors(spec, tensors, limit) | terms).items():
        matrix = name.endswith(".weight") and values.ndim == 2
        arrays |= _quantized(name, values) if matrix and weights == "int8" else {name: values}
    meta = {
        "index": index,
        "name": model.name,
        "revision": model.revision,
        "weights": weights,
        "max_tokens": limit,
        "trained_tokens": model.checkpoint.trained_tokens,
        "encoder": _encoder(spec, distances),
        "tokenizer": _tokenizer(model.tokenizer, model.name),
    }
    # Numbers of trained weights hardly repeat: looking for repetitions takes longer and saves nothing.
    deflate = zlib.compressobj(9, strategy=zlib.Z_HUFFMAN_ONLY)
    text = as_text(deflate.compress(pack(arrays, meta)) + deflate.flush())
    if len(text) > MOST_CHARACTERS:
        way = "take int8 weights, or a smaller model" if weights == "float32" else "take a smaller model"
        raise InvalidRequest(
            f"{model.name} takes {len(text) / 1e6:,.0f} MB of a page, and a page holds "
            f"{MOST_CHARACTERS // 1_000_000} MB; {way}"
        )
    return text


DIGITS = np.array([code for code in range(32, 127) if chr(code) != "<"], np.uint8)
"""Printable ASCII without what could end the element of the page."""


def as_text(data: bytes) -> str:
    """Eleven characters for every nine bytes, a number in base 94, after `len(data)` and a colon."""
    bytes_ = np.frombuffer(data + bytes(-len(data) % 9), np.uint8).reshape(-1, 3, 3).astype(np.uint32)
    limbs = bytes_[..., 0] << 16 | bytes_[..., 1] << 8 | bytes_[..., 2]
    digits = np.empty((len(limbs), 11), np.uint8)
    for place in range(10, -1, -1):
        rest = np.zeros(len(limbs), np.uint32)
        for limb in limbs.T:
            limb[:], rest = np.divmod((rest << 24) + limb, 94)
        digits[:, place] = DIGITS[rest]
    return f"{len(data)}:{digits.tobytes().decode('ascii')}"


def unsupported_in_page(spec: EncoderSpec) -> str | None:
    """Why a page cannot compute an encoder, as the end of "... because"; None if it can."""
    reason = unsupported_encoder(spec)
    if reason is None and spec.embedding.scale != 1:
        reason = "its word vectors are multiplied"
    return reason or next(filter(None, map(_unsupported_layer, spec.layers)), None)


def _unsupported_layer(layer: Layer) -> str | None:
    mixer = layer.mixer
    assert isinstance(mixer, SoftmaxAttention)
    stretched = isinstance(mixer.position, Rotary) and mixer.position.yarn is not None
    reasons = {
        "its positions are disentangled from content (DeBERTa)": isinstance(mixer.position, Disentangled),
        "global tokens or blocks are no range of keys": not isinstance(
            mixer.pattern, FullAttention | CausalAttention | SlidingWindow
        ),
        "its queries and keys are normalized": mixer.query_key_norm is not None,
        "its scores are not divided by the root of a head's width": mixer.score_scale is not None,
        "its positions are stretched by YaRN": stretched,
        "what its layers add is normalized": layer.output_norms or layer.attention_sum_norm,
        "what its layers add is multiplied": layer.output_scale != 1,
        "its norms multiply by 1 plus their weights": isinstance(layer.norm, RMSNorm) and layer.norm.one_plus,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def live_tokens(spec: EncoderSpec, max_tokens: int | None) -> int:
    """The most tokens of a text in the page: what the model reads, and `MOST_CELLS` at most."""
    most = math.isqrt(MOST_CELLS // max(sum(layer.mixer.heads for layer in spec.layers), 1))
    return min(most, *(limit for limit in (max_tokens, spec.max_tokens) if limit is not None), most)


def _tensors(spec: EncoderSpec, tensors: Weights, limit: int) -> dict[str, Float32s]:
    """What the page reads, by the names of the ``state_dict``; of tables, the rows that texts can reach."""
    read = {name: tensor for name, tensor in tensors.items() if name.startswith(PARTS)}
    positions = spec.embedding.positions
    if spec.embedding.tasks:  # every token has one token type and task 0
        name = "embedding.segments.weight"
        read[name] = read[name] + read.pop("embedding.tasks.weight")[0]
    if positions is not None:
        name = "embedding.positions.weight"
        table = read.pop(name)
        if positions.added:
            read[name] = table[: positions.offset + limit]
    for number, layer in enumerate(spec.layers):
        prefix = f"layers.{spec.weights_of_layer[number]}"
        assert isinstance(layer.mixer, SoftmaxAttention)
        read[f"{prefix}.attention.qkv.bias"] = qkv_bias(layer.mixer, tensors, prefix)
        for part in ("query_bias", "key_bias", "value_bias"):
            read.pop(f"{prefix}.attention.{part}", None)
    return read


NO_TABLE = -1


def _distances(spec: EncoderSpec, tensors: Weights) -> tuple[PositionTables, list[int]]:
    """The tables of terms that are added by distance, and the number of each layer's, or `NO_TABLE`."""
    relative = isinstance(spec.distances, RelativePositionBias)
    tables = PositionTables(tensors["distances.table.weight"] if relative else None)
    mixers = [layer.mixer for layer in spec.layers]
    return tables, [tables.distances_of(mixer) for mixer in mixers if isinstance(mixer, SoftmaxAttention)]


def _quantized(name: str, values: Float32s) -> dict[str, NDArray[Any]]:
    """A matrix as whole numbers from -127 to 127 that a scale of the row and one of the column multiply.

    The scale of a column is the square root of its largest magnitude: a few columns of trained networks are
    tens of times larger than the others, which would otherwise be rounded as coarsely as those.
    """
    largest = np.sqrt(np.abs(values).max(0))
    columns = np.where(largest > 0, largest, 1)
    scaled = values / columns
    rows = np.abs(scaled).max(1) / 127
    steps = np.rint(scaled / np.where(rows > 0, rows, 1)[:, None]).astype(np.int8)
    return {name: steps.view(np.uint8), f"{name}.rows": rows, f"{name}.columns": columns}


def _encoder(spec: EncoderSpec, distances: list[int]) -> dict[str, Any]:
    embedding = spec.embedding
    learned, projection = embedding.positions, embedding.projection
    return {
        "width": spec.width,
        "embedding": {
            "width": embedding.width,
            "positions": None
            if learned is None or not learned.added
            else {"offset": learned.offset, "left_out": learned.left_out},
            "norm": _norm(embedding.norm),
            "project": None if projection is None else "before" if projection.before_norm else "after",
        },
        "layers": [
            _layer(layer, spec.weights_of_layer[number], distances[number])
            for number, layer in enumerate(spec.layers)
        ],
        "final_norm": _norm(spec.final_norm),
    }


def _layer(layer: Layer, weights: int, distances: int) -> dict[str, Any]:
    mixer, network = layer.mixer, layer.feedforward
    assert isinstance(mixer, SoftmaxAttention)
    rotary = mixer.position if isinstance(mixer.position, Rotary) else None
    return {
        "weights": weights,
        "norm_first": layer.norm_first,
        "attention_norm": layer.attention_norm,
        "norm": _norm(layer.norm),
        "heads": mixer.heads,
        "shared": mixer.qkv_heads[1],
        "head_width": mixer.head_width,
        "radius": _radius(mixer.pattern),
        "rotary": None
        if rotary is None
        else {
            "theta": rotary.theta,
            "pairs": (rotary.width or mixer.head_width) // 2,
            "interleaved": rotary.interleaved,
            "scale": rotary.scale,
        },
        "distances": distances,
        "activation": ACTIVATIONS[network.activation],
        "gated": isinstance(network, GatedFeedForward),
    }


def _norm(norm: Norm | None) -> dict[str, Any] | None:
    assert not isinstance(norm, NoNorm)
    return None if norm is None else {"centered": isinstance(norm, LayerNorm), "eps": norm.eps}


def _radius(pattern: AttentionPattern) -> int:
    match pattern:
        case CausalAttention():
            return BEFORE
        case SlidingWindow():
            return pattern.radius
        case _:
            return ALL


def _tokenizer(tokenizer: Tokenizer, name: str) -> dict[str, Any]:
    """What `web/src/live/tokenizer.ts` reads of a tokenizer.

    Raises:
        UnknownArchitecture: the page cannot read texts with it.
    """
    state = json.loads(tokenizer.engine.to_str())
    normalized = _steps(state["normalizer"], "normalizers")
    splitters = _steps(state["pre_tokenizer"], "pretokenizers")
    model = state["model"]
    reason = _unsupported_steps(normalized, splitters) or _unsupported_pieces(model, splitters)
    if reason is not None:
        raise UnknownArchitecture(
            f"{name} cannot compute in a page because its tokenizer {reason}; save the page without the model"
        )
    added = state["added_tokens"]
    pieces = {id_: piece for piece, id_ in model["vocab"].items()}
    pieces |= {token["id"]: token["content"] for token in added}
    return {
        "classes": _classes_of_bytes() if splitters[0]["type"] == "ByteLevel" else _classes_of_bert(),
        "normalizers": normalized,
        "splitters": splitters,
        "vocabulary": [pieces.get(id_, "") for id_ in range(max(pieces) + 1)],
        "merges": [
            merge.split(" ") if isinstance(merge, str) else merge for merge in model.get("merges", [])
        ],
        "model": {key: value for key, value in model.items() if key not in ("vocab", "merges")},
        "added": [
            token
            for token in added
            if tokenizer.reads == "parse" or not token["special"] or token["content"] in tokenizer.kept
        ],
        "single": _template(tokenizer, None),
        "pair": _template(tokenizer, "a"),
        "known": tokenizer.known,
    }


Steps = list[dict[str, Any]]


def _steps(part: Mapping[str, Any] | None, several: str) -> Steps:
    """A normalizer or splitter as a list of simple ones."""
    if part is None:
        return []
    if part["type"] != "Sequence":
        return [dict(part)]
    return [step for inner in part[several] for step in _steps(inner, several)]


def _unsupported_steps(normalized: Steps, splitters: Steps) -> str | None:
    kinds = ((normalized, NORMALIZERS, "normalizes"), (splitters, SPLITTERS, "splits"))
    for steps, supported, does in kinds:
        for step in steps:
            if step["type"] not in supported:
                return f"{does} texts by {step['type']}, and a page knows {', '.join(supported)}"
    if len(splitters) != 1:
        return f"splits texts in {len(splitters)} steps, and a page does so in one"
    return None


def _unsupported_pieces(model: Mapping[str, Any], splitters: Steps) -> str | None:
    kind = model.get("type", "BPE" if "merges" in model else "?")
    if kind == "WordPiece":
        return None
    if kind != "BPE":
        return f"is a {kind} model, and a page knows WordPiece and byte-level BPE"
    if splitters[0]["type"] != "ByteLevel" or any(map(model.get, BEYOND_BYTES)):
        return "is a BPE model of characters, and a page knows WordPiece and byte-level BPE"
    return None


CODES = (*range(0x80, 0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE1000))
"""All that is assigned, and not for private use, of the 17 planes of Unicode; ASCII is known."""


@cache
def _classes_of_bert() -> dict[str, list[int]]:
    """What BERT's normalizer and splitter treat apart, as beginnings and ends of ranges of characters.

    The package `tokenizers` and browsers have tables of different versions of Unicode, so the package is
    asked for every character.
    """
    apart = "|" + "|".join(map(chr, CODES)) + "|"
    cleaned, stripped = (
        normalizer.normalize_str(apart)[1:-1].split("|")
        for normalizer in (
            normalizers.BertNormalizer(True, False, False, False),
            normalizers.BertNormalizer(False, False, True, False),
        )
    )
    starts = _starts(pre_tokenizers.BertPreTokenizer(), "a")
    return {
        "removed": _ranges(code for code, left in zip(CODES, cleaned, strict=True) if not left),
        "marks": _ranges(code for code, left in zip(CODES, stripped, strict=True) if not left),
        "punctuation": _ranges(code for place, code in enumerate(CODES) if 2 * place + 1 in starts),
    }


@cache
def _classes_of_bytes() -> dict[str, list[int]]:
    """Letters and numbers of byte-level tokenizers, likewise."""
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    classes = {}
    for name, like in (("letters", "a"), ("numbers", "1")):
        starts = _starts(level, like)
        classes[name] = _ranges(code for place, code in enumerate(CODES) if 2 * place + 1 not in starts)
    return classes


def _starts(splitter: pre_tokenizers.PreTokenizer, between: str) -> set[int]:
    """Where words begin in a text of all `CODES`, each after an ASCII character, with a last one."""
    text = between + between.join(map(chr, CODES)) + between
    return {start for _, (start, _) in splitter.pre_tokenize_str(text)}


def _ranges(codes: Iterable[int]) -> list[int]:
    """Beginning and end of every run of ascending numbers, the end not included."""
    ranges: list[int] = []
    for code in codes:
        if ranges and ranges[-1] == code:
            ranges[-1] += 1
        else:
            ranges += [code, code + 1]
    return ranges


def _template(tokenizer: Tokenizer, pair: str | None) -> list[dict[str, int]]:
    """What frames a text or a pair: special tokens, and the places of the texts, each with its token type."""
    raw = tokenizer.engine.encode("a", pair)
    parts: list[dict[str, int]] = []
    for id_, type_, special, of in zip(
        raw.ids, raw.type_ids, raw.special_tokens_mask, raw.sequence_ids, strict=True
    ):
        part = {"id": id_, "type": type_} if special or of is None else {"text": of, "type": type_}
        if "id" in part or part not in parts:
            parts.append(part)
    return parts

"""Provenance: what a saved picture or number was computed with, so that it can be reproduced."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import parse_qsl

from unmask.explorer.sessions.described import versions
from unmask.explorer.sessions.models import AnyModel
from unmask.explorer.sessions.texts import TextSession
from unmask.families import DEFAULT_NAME
from unmask.models.elmo import ElmoModel
from unmask.spec import SoftmaxAttention
from unmask.weights.read.find import DEFAULT, SHIPPED

WEIGHTINGS = {
    "raw": "raw attention",
    "norm": "norm-weighted: attention times the norm of the transformed value, rows scaled to sum to 1",
}
POOLINGS = {"max": "maximum of a pooled cell", "mean": "mean of a pooled cell"}
SCALES = {"sqrt": "square-root", "linear": "linear", "log": "logarithmic"}


@dataclass(frozen=True)
class StampLine:
    """One thing that a number depends on."""

    name: str
    value: str


@dataclass(frozen=True)
class Stamp:
    """What results of a text are made with. ``load``: Python that loads the model; ``date``: in UTC."""

    lines: tuple[StampLine, ...]
    load: str
    date: str


def stamp(session: TextSession) -> Stamp:
    """The provenance of everything computed from one text by one model."""
    described, model = session.described, session.reader
    tokens = f"{described.kept_tokens:,}"
    if described.kept_tokens < described.total_tokens:
        tokens += f" of {described.total_tokens:,}, the rest was truncated"
    values = {
        "model": described.model,
        "revision": described.revision or "none: it comes with a package or is a folder",
        "family": "ELMo" if isinstance(model, ElmoModel) else model.checkpoint.family.name,
        "number format": f"{described.dtype} on {model.device}",
        "attention": _kernels(model),
        **versions(),
        "text sha256": described.text_sha256,
        "tokens": tokens,
    }
    lines = tuple(StampLine(name, value) for name, value in values.items())
    return Stamp(lines, _call(model), utc_now())


def drawn(hash_: str) -> tuple[StampLine, ...]:
    """How attention is drawn, from the part of the address behind ``#``."""
    state = dict(parse_qsl(hash_.lstrip("#")))
    return (
        StampLine("weighting", WEIGHTINGS.get(state.get("weight", ""), WEIGHTINGS["raw"])),
        StampLine("pooling", POOLINGS.get(state.get("pool", ""), POOLINGS["max"])),
        StampLine("color scale", SCALES.get(state.get("scale", ""), SCALES["sqrt"])),
    )


def one_line(stamps: Iterable[Mapping[str, object]], hash_: str) -> str:
    """Stamps as they were answered, how attention is drawn, and the time, in one line."""
    lines: list[tuple[str, str]] = []
    for stamp_json in stamps:
        listed = stamp_json["lines"]
        assert isinstance(listed, list)
        lines += [(line["name"], line["value"]) for line in listed]
    lines += [(line.name, line.value) for line in drawn(hash_)]
    return "; ".join(dict.fromkeys(f"{name}: {value}" for name, value in [*lines, ("saved", utc_now())]))


def utc_now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _kernels(model: AnyModel) -> str:
    if isinstance(model, ElmoModel):
        return "none: its layers are LSTMs"
    softmax = [isinstance(layer.mixer, SoftmaxAttention) for layer in model.spec.layers]
    if all(softmax):
        spans = any(getattr(layer.mixer, "span_convolution", None) is not None for layer in model.spec.layers)
        beside = "; convolutions beside it, which are no attention, are not shown"
        sinks = any(getattr(layer.mixer, "sinks", False) for layer in model.spec.layers)
        less = "; rows sum to less than 1, and the rest is that of attention sinks"
        return f"softmax, exact{beside if spans else ''}{less if sinks else ''}"
    implied = "implied weights of linear attention (kernel)"
    return f"{implied}, and softmax" if any(softmax) else implied


def _call(model: AnyModel) -> str:
    """Python that loads the model again."""
    if isinstance(model, ElmoModel):
        name, dtype = (json.dumps(value, ensure_ascii=False) for value in (model.name, model.dtype))
        return f'unmask.load({name}, family="elmo", dtype={dtype})  # the path of that folder'
    name = DEFAULT if model.name == DEFAULT_NAME and model.revision is None else model.name
    options = [json.dumps(name, ensure_ascii=False), f"dtype={json.dumps(model.dtype)}"]
    if model.revision is not None:
        options.append(f"revision={json.dumps(model.revision)}")
    folder = model.revision is None and name != DEFAULT and name not in SHIPPED
    comment = "  # the path of that folder" if folder else ""
    return f"unmask.load({', '.join(options)}){comment}"

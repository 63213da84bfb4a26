"""A checkpoint as a folder with one ONNX graph, compared with the encoder that it came from."""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.base.files import whole_folder
from unmask.base.optional import require
from unmask.engines.engine import Floats
from unmask.engines.export import INPUTS, OutputName
from unmask.engines.export.padded import PaddedEncoder, default_outputs, why_not_padded
from unmask.engines.torch_engine import TorchEngine
from unmask.errors import InvalidRequest
from unmask.spec import MultiVector, PooledVector, SparseVector, role_of
from unmask.spec.encoder import head_of
from unmask.spec.global_tokens import has_global_tokens
from unmask.spec.heads import is_per_token
from unmask.spec.roles import ROLES
from unmask.text.batch import PackedBatch
from unmask.weights.build import build
from unmask.weights.heads.sentence_modules import to_json
from unmask.weights.read.checkpoint import Checkpoint

GRAPH = "model.onnx"
OPSET = 18
LONGEST = 8192
"""The longest text of a graph whose encoder has no limit."""
WHOLE_UP_TO = 1024
"""Tokens up to which full attention is computed at once."""
ROWS = 256
"""Queries whose scores are computed at once where texts may be longer."""
TOLERANCE = 1e-4
"""The largest difference between the graph and the encoder that is accepted."""


Run = Callable[[Mapping[str, NDArray[np.int64]]], Sequence[Floats]]
"""A graph in some runtime: from its inputs by name to its outputs in order."""


@dataclass(frozen=True)
class Exported:
    """A graph that was written."""

    folder: Path
    inputs: tuple[str, ...]
    outputs: tuple[OutputName, ...]
    role: str | None
    """The head whose logits are among the outputs; None if there are none."""
    max_tokens: int
    """The most tokens of a text."""
    largest_difference: float
    """Between the graph, in ONNX Runtime, and the encoder, over several texts and all outputs; as a share of
    an output's largest number if that is above 1."""
    megabytes: float
    """The size of the graph with its weights, in units of 10^6 bytes."""


def export_onnx(
    checkpoint: Checkpoint,
    folder: str | Path,
    *,
    outputs: Sequence[OutputName] | None = None,
    role: str | None = None,
    max_tokens: int | None = None,
) -> Exported:
    """Write a checkpoint as ``model.onnx`` in float32, with its config.json and the files of its tokenizer.

    The graph reads ``input_ids``, ``attention_mask`` and, if the encoder has several token types,
    ``token_type_ids``, int64 of shape (texts, tokens), both dynamic, with padding at the end of each text.
    Windows stay windows: their scores are computed in blocks. Where texts may have more than `WHOLE_UP_TO`
    tokens, full attention is computed for `ROWS` queries after another, so memory grows linearly with length.
    The graph is run in ONNX Runtime and compared with the encoder before the folder appears.

    Args:
        checkpoint: what to export; see `unmask.weights.read_checkpoint`.
        folder: where to write; it must not exist, or be empty.
        outputs: what the graph computes, see `OutputName`; None: what the checkpoint gives.
        role: the head whose logits are computed; None: the first.
        max_tokens: the most tokens of a text; None: those that the checkpoint reads, or `LONGEST`.

    Raises:
        InvalidRequest: the encoder cannot be exported, or has no such output.
        MissingExtra: the packages of the extra ``onnx`` are not installed.
        OutputError: the folder exists, or cannot be written.
    """
    require("onnx")
    spec = checkpoint.spec
    reason = why_not_padded(spec)
    if reason is not None:
        raise InvalidRequest(f"{checkpoint.source.name} cannot be exported, because {reason}")
    gives = checkpoint.head if checkpoint.adapter is None else None  # an adapter is for its head
    chosen = default_outputs(spec, gives) if outputs is None else tuple(outputs)
    if len(set(chosen)) < len(chosen) or not chosen:
        raise InvalidRequest(f"outputs are {list(chosen)}; name at least one, and each once")
    if role is not None and "logits" not in chosen:
        raise InvalidRequest(f"role is {role!r}, and logits are not among the outputs; leave it out")
    if "logits" in chosen and role is None and spec.heads:
        role = role_of(spec.heads[0])
    limit = checkpoint.max_tokens
    if max_tokens is not None and not 1 <= max_tokens <= (limit or max_tokens):
        up = "at least 1" if limit is None else f"from 1 to {limit}, the most that the checkpoint reads"
        raise InvalidRequest(f"max_tokens is {max_tokens}; it must be {up}")
    longest = max_tokens or limit or LONGEST
    encoder = build(checkpoint, dtype="float32").eval()
    module = PaddedEncoder(
        encoder,
        checkpoint.head,
        outputs=chosen,
        role=role if "logits" in chosen else None,
        longest=longest,
        global_tokens=_global_tokens(checkpoint, role if "logits" in chosen else None),
        rows=ROWS if longest > WHOLE_UP_TO else None,
    ).eval()
    files: dict[str, bytes] = {
        "config.json": to_json(checkpoint.config),
        **(checkpoint.stored_tokenizer.files if checkpoint.stored_tokenizer else {}),
    }
    with whole_folder(Path(folder)) as partial:
        for name, content in sorted(files.items()):
            (partial / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / name).write_bytes(content)
        _write(module, partial / GRAPH, longest)
        inputs, run = _in_onnxruntime(partial / GRAPH)
        difference = _difference(module, inputs, run, longest)
        if not difference <= TOLERANCE:
            raise InvalidRequest(
                f"the graph differs from the encoder by {difference:.2g}, and at most {TOLERANCE:.0e} is "
                "accepted, so nothing was written; please report this with the checkpoint's name"
            )
        size = sum(path.stat().st_size for path in partial.glob(f"{GRAPH}*")) / 1e6
    return Exported(Path(folder), inputs, chosen, module.role, longest, difference, size)


def _global_tokens(checkpoint: Checkpoint, role: str | None) -> int:
    """How many tokens at the beginning are global: those that the head was trained with."""
    if not has_global_tokens(checkpoint.spec):
        return 0
    choice = "first" if role is None else ROLES[role].global_tokens
    if choice in ("question", "second"):
        raise InvalidRequest(
            f"{checkpoint.source.name} cannot be exported with the logits of its {role} head, because its "
            f"global tokens are those of one text of a pair ({choice}), whose number differs"
        )
    return int(choice == "first")


def _inputs(module: PaddedEncoder, texts: int, tokens: int, seed: int = 0) -> tuple[NDArray[np.int64], ...]:
    """Random ids, the mask of texts of different lengths, and token types, (texts, tokens) each."""
    words, generator = module.encoder.spec.embedding, np.random.default_rng(seed)
    lengths_B1 = np.linspace(tokens, max(1, tokens // 3), texts).astype(int)[:, None]
    mask_BN = np.arange(tokens) < lengths_B1
    ids_BN = generator.integers(0, words.vocabulary, (texts, tokens))
    types_BN = generator.integers(0, min(2, words.segments or 1), (texts, tokens))
    return ids_BN * mask_BN, mask_BN.astype(np.int64), types_BN * mask_BN


def _write(module: PaddedEncoder, path: Path, longest: int) -> None:
    """Trace the module with symbols for the numbers of texts and tokens, and write its graph."""
    tokens = torch.export.Dim("tokens", min=1, max=longest)
    texts = torch.export.Dim("texts", min=1)
    arrays = _inputs(module, 3, module.example_tokens)
    # Tokenizers of families with one token type or none give no token types.
    names = INPUTS if (module.encoder.spec.embedding.segments or 0) > 1 else INPUTS[:2]
    shapes = {name: {0: texts, 1: tokens} for name in names}
    example = tuple(torch.from_numpy(array) for array in arrays[: len(names)])
    with _quietly(), torch.no_grad():
        program = torch.onnx.export(
            module,
            example,
            dynamo=True,
            dynamic_shapes=shapes,
            input_names=list(names),
            output_names=list(module.outputs),
            opset_version=OPSET,
            verbose=False,
        )
        assert program is not None
        program.save(str(path))


@contextlib.contextmanager
def _quietly() -> Any:
    """Without the exporter's own report and warnings, which speak of its internals."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)


def _in_onnxruntime(path: Path) -> tuple[tuple[str, ...], Run]:
    """The names of a graph's inputs, and the graph in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    inputs = tuple(input_.name for input_ in session.get_inputs())
    return inputs, lambda feeds: session.run(None, feeds)


def _difference(module: PaddedEncoder, inputs: Sequence[str], run: Run, longest: int) -> float:
    """The largest difference of a graph from its encoder, as a share of an output's largest number if that is
    above 1; padding does not count.

    Batches have one text and several, of one token up to more than two windows.
    """
    largest = 0.0
    sizes = ((1, 1), (2, min(longest, 9)), (3, min(longest, 200)), (1, module.example_tokens))
    for seed, (texts, tokens) in enumerate(sizes):
        arrays = _inputs(module, texts, tokens, seed + 1)
        feeds = {name: array for name, array in zip(INPUTS, arrays, strict=True) if name in inputs}
        outputs = run(feeds)
        ids_BN, mask_BN, types_BN = arrays
        lengths_B, firsts = mask_BN.sum(1).tolist(), range(module.global_tokens)
        batch = PackedBatch.of_ids(
            [row[:length] for row, length in zip(ids_BN, lengths_B, strict=True)],
            [row[:length] for row, length in zip(types_BN, lengths_B, strict=True)],
            [firsts] * texts if module.global_tokens else None,
        )
        for name, padded in zip(module.outputs, outputs, strict=True):
            got = padded[mask_BN > 0] if _per_token(module, name) else padded
            wanted = _wanted(module, name, batch)
            difference = float(np.abs(got - wanted).max()) / max(1.0, float(np.abs(wanted).max()))
            largest = max(largest, difference if np.isfinite(padded).all() else np.inf)
    return largest


def _per_token(module: PaddedEncoder, name: OutputName) -> bool:
    """Whether an output has a row for each token."""
    if name == "logits":
        return is_per_token(head_of(module.encoder.spec, module.role or ""))
    return name in ("last_hidden_state", "token_embeddings")


def _wanted(module: PaddedEncoder, name: OutputName, batch: PackedBatch) -> Floats:
    """The same output by the encoder itself, from packed texts."""
    engine, output = TorchEngine(module.encoder), module.output
    match name, output:
        case "sentence_embedding", PooledVector():
            return engine.embed(batch, output)
        case "token_embeddings", MultiVector():
            return engine.token_vectors(batch, output, np.arange(batch.layout.token_count))
        case "sparse_embedding", SparseVector():
            return np.stack(list(engine.word_weights(batch, output)))
        case "logits", _:
            return engine.logits(batch, module.role or "")
        case _:
            return engine.hidden_states(batch)


__all__ = ["GRAPH", "INPUTS", "Exported", "export_onnx"]

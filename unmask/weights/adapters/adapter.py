"""Adapters: small folders with a head for a task and low-rank updates of a base model's linear layers.

The files are those of `peft`: ``adapter_config.json`` and ``adapter_model.safetensors``. `ADAPTER_FILE` holds
what `peft` has no place for: the labels, and which base model the weights belong to. Free of torch.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from unmask.base.files import read_regular
from unmask.base.json_settings import JsonSettings
from unmask.base.optional import folder_of
from unmask.errors import CheckpointNotFound, CorruptCheckpoint, InvalidRequest, UnmaskError, quoted
from unmask.families import Compat, Family
from unmask.spec import ROLES, Classifier, EncoderSpec, LabeledRole, LabelHead
from unmask.spec.check import require_size
from unmask.spec.config import WITHOUT_EFFECT
from unmask.spec.config_keys import in_range
from unmask.spec.encoder import require_layers
from unmask.spec.shapes import tensor_shapes
from unmask.spec.tensor_map import Rearrangement, Rename
from unmask.weights.read.checkpoint import Adapter, Checkpoint
from unmask.weights.read.checkpoint_tensors import (
    Float32s,
    StoredArrays,
    not_finite_in,
    read_arrays,
    report_tensors,
    rounds_to_finite,
)
from unmask.weights.tensor_report import TensorReport, canonical, moves
from unmask.weights.tensors import StoredTensor, in_our_order, tensors_of_file

PEFT_FILE = "adapter_config.json"
PEFT_WEIGHTS = "adapter_model.safetensors"
ADAPTER_FILE = "unmask_adapter.json"

PEFT_PREFIX = "base_model.model."
"""What `peft` puts before the names of a model's tensors."""
A, B = ".lora_A.weight", ".lora_B.weight"

TASK_TYPES = {role.peft_task: name for name, role in ROLES.items() if role.peft_task is not None}
"""`peft`'s names for kinds of tasks, and the roles of their heads."""

LABEL_KEYS = ("id2label", "label2id", "num_labels", "problem_type")
"""Keys of config.json that describe a head's labels, which are the adapter's."""

LABELS = "labels"
"""The role, in `ADAPTER_FILE`, of a head that finds entities of labels which the base reads."""

LABEL_HEAD = "label_head."
"""What stands before the names of its tensors, after `PEFT_PREFIX`."""

LABEL_SIZES = ("width", "max_width", "max_words")
"""What `ADAPTER_FILE` says of that head, beside what it scores."""

SHIPPED_ADAPTERS = ("answers", "entailment", "entities", "names", "sentiment")
"""Adapters of "default" in the package unmask-models; the README.md in their folders describes them."""


def find_adapter(name: str | Path) -> Adapter:
    """The adapter in a folder, or the one of `SHIPPED_ADAPTERS` with that name.

    Raises:
        CheckpointNotFound: there is no such folder or name.
        MissingExtra: it is one of `SHIPPED_ADAPTERS`, and the package unmask-models is not installed.
        CorruptCheckpoint: its files are damaged.
        InvalidRequest: it is of a kind that is not supported.
    """
    if not isinstance(name, str | Path) or not str(name):
        raise InvalidRequest(
            f"adapter is {quoted(name)}; name a folder, or one of {', '.join(map(repr, SHIPPED_ADAPTERS))}"
        )
    path = Path(name).expanduser()
    if str(name) in SHIPPED_ADAPTERS:
        return read_adapter(folder_of("models") / "adapters" / str(name))
    if not (path / PEFT_FILE).exists():
        raise CheckpointNotFound(
            f"{path} holds no {PEFT_FILE}, so it is not an adapter; name a folder with one, or one of the "
            f"adapters of the package unmask-models: {', '.join(SHIPPED_ADAPTERS)}"
        )
    return read_adapter(path)


def read_adapter(folder: Path) -> Adapter:
    """Read everything except the weights themselves; see `find_adapter`."""
    peft = JsonSettings.parse(read_regular(folder / PEFT_FILE, CorruptCheckpoint), PEFT_FILE)
    settings = JsonSettings("", {})
    if (folder / ADAPTER_FILE).exists():
        settings = JsonSettings.parse(read_regular(folder / ADAPTER_FILE, CorruptCheckpoint), ADAPTER_FILE)
    name = settings.get("name", folder.resolve().name)
    task = peft.get_optional("task_type", str)
    stored = settings.get_optional("role", str) or TASK_TYPES.get(str(task))
    role = next((role for role in get_args(LabeledRole) if role == stored), None)
    if role is None and stored != LABELS:
        raise InvalidRequest(
            f"the adapter {name} has the task_type {task!r}; it can be {', '.join(TASK_TYPES)}"
        )
    weights = folder / PEFT_WEIGHTS
    if not weights.exists():
        raise CheckpointNotFound(f"{folder} holds no {PEFT_WEIGHTS}; copy the adapter again")
    tensors, updates = _split(name, tensors_of_file(weights))
    return Adapter(
        name=name,
        folder=folder,
        role=role,
        config=settings.get("config", {}),
        scale=_scale(name, peft),
        tensors=tensors,
        updates=updates,
        base=settings.get_optional("base", str) or peft.get_optional("base_model_name_or_path", str),
        fingerprint=settings.get_optional("fingerprint", str),
        label_head=_label_head(settings) if role is None else None,
    )


def _label_head(settings: JsonSettings) -> LabelHead:
    """The head that `ADAPTER_FILE` describes, but for the width of the base's states."""
    stated = JsonSettings(f"labels in {ADAPTER_FILE}", settings.get("labels", {}))
    stated.require_one_of("scores", "spans", "words")
    width, max_width, max_words = (stated.get(key, 0) for key in LABEL_SIZES)
    for key, value in zip(LABEL_SIZES, (width, max_width, max_words), strict=True):
        in_range(stated, key, value, require_size)
    scores: Literal["spans", "words"] = "words" if stated.get("scores", "spans") == "words" else "spans"
    return LabelHead(width, scores, max_width, max_words, rnn_layers=0)


def stated_label_head(head: LabelHead) -> dict[str, Any]:
    """What `ADAPTER_FILE` says of a head, from which it is read."""
    return {"scores": head.scores, **{key: getattr(head, key) for key in LABEL_SIZES}}


UNSUPPORTED = {
    "use_dora": (False, None),
    "bias": ("none", None),
    "fan_in_fan_out": (False, None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
}
"""Settings of `peft` that would change the result, and the values that are supported."""


def _scale(name: str, peft: JsonSettings) -> float:
    kind = peft.get_optional("peft_type", str)
    if kind != "LORA":
        raise InvalidRequest(f"the adapter {name} has the peft_type {kind!r}; only LORA is supported")
    for key, values in UNSUPPORTED.items():
        if peft.values.get(key) not in values:
            raise InvalidRequest(
                f"the adapter {name} has {key} = {peft.values[key]!r}, which is not supported; merge it with "
                "peft and load the merged checkpoint"
            )
    rank, alpha = peft.get("r", 8), peft.get("lora_alpha", 8.0)
    if rank < 1:
        raise CorruptCheckpoint(f"the adapter {name} has r = {rank}; it must be at least 1")
    return alpha / (rank**0.5 if peft.get("use_rslora", False) else rank)


def _split(
    name: str, stored: Mapping[str, StoredTensor]
) -> tuple[dict[str, StoredTensor], dict[str, tuple[StoredTensor, StoredTensor]]]:
    """The tensors of the head, and A and B of every update."""
    whole = {key.removeprefix(PEFT_PREFIX): replace(tensor, key=key) for key, tensor in stored.items()}
    updates = {}
    for key, tensor in whole.items():
        if key.endswith(A):
            target = key.removesuffix(A)
            other = whole.get(target + B)
            if other is None or len(tensor.shape) != 2 or tensor.shape[0] != other.shape[-1]:
                raise CorruptCheckpoint(
                    f"the adapter {name} has {key} and no {target + B} that fits; copy the adapter again"
                )
            updates[target + ".weight"] = (tensor, other)
    low_rank = {target.removesuffix(".weight") + end for target in updates for end in (A, B)}
    return {key: tensor for key, tensor in whole.items() if key not in low_rank}, updates


def adapted(base: Checkpoint, adapter: Adapter, compat: Compat = "published") -> Checkpoint:
    """The base model with the adapter's head and updates, as a checkpoint to build or save.

    Heads of the base are left out, since the adapter changes the states that they read. ``compat`` is that of
    `read_checkpoint`.

    Raises:
        InvalidRequest: the adapter belongs to another model.
    """
    require_layers(base.spec, "an adapter")
    if adapter.label_head is not None:
        return _with_label_head(base, adapter, adapter.label_head)
    assert adapter.role is not None
    family = base.family
    config = {key: value for key, value in base.config.items() if key not in LABEL_KEYS}
    # A folder of peft alone does not say it.
    kind = {"architectures": [family.stem + family.classes.get(frozenset({adapter.role}), "Model")]}
    settings = JsonSettings("config.json", {**config, **kind, **adapter.config})
    try:
        spec = family.read(settings, compat)
        tensors = _tensors(base, adapter)
        spec, tensors = _with_head(family, spec, tensors, settings, adapter)
        checkpoint = replace(
            base,
            spec=spec,
            config=settings.values,
            unread_config=tuple(sorted(settings.unread() - set(WITHOUT_EFFECT))),
            tensors=tensors,
            adapter=adapter,
        )
        report_tensors(checkpoint)
    except UnmaskError as error:
        raise _other(base, adapter, str(error)) from None
    _check_updates(base, spec, adapter)
    return checkpoint


def _with_label_head(base: Checkpoint, adapter: Adapter, head: LabelHead) -> Checkpoint:
    """The base with updates and a head for labels that are named with the text, which the base reads."""
    labels = label_encoder(base)
    checkpoint = replace(
        labels,
        adapter=adapter,
        label_head=replace(head, labels_width=labels.spec.width),
        label_tensors={name.removeprefix(LABEL_HEAD): tensor for name, tensor in adapter.tensors.items()},
        label_config=label_encoder_keys(labels),
        label_encoder=labels,
    )
    _check_updates(base, labels.spec, adapter)
    return checkpoint


def label_encoder(checkpoint: Checkpoint) -> Checkpoint:
    """A checkpoint as the encoder of labels: without a pooler and heads, whose tensors are left out.

    Raises:
        InvalidRequest: it is a static model.
    """
    require_layers(checkpoint.spec, "an encoder of labels")
    read = {
        status.name: checkpoint.tensors[status.name]
        for status in report_tensors(checkpoint).statuses
        if status.ours is not None and not status.ours.startswith(("heads.", "pooler."))
    }
    spec = replace(checkpoint.spec, pooler=None, heads=())
    return replace(checkpoint, spec=spec, tensors=read)


def label_encoder_keys(labels: Checkpoint) -> dict[str, Any]:
    """What gliner_config.json says of an encoder of labels."""
    return {"labels_encoder": labels.source.name, "labels_encoder_config": dict(labels.config)}


def _tensors(base: Checkpoint, adapter: Adapter) -> dict[str, StoredTensor]:
    """The tensors of the encoder, and those of the adapter instead of any of the same name."""
    prefixes = base.family.prefixes
    replaced = {canonical(name, prefixes) for name in adapter.tensors}
    unchanged = {
        status.name: base.tensors[status.name]
        for status in report_tensors(base).statuses
        if status.ours is not None
        and not status.ours.startswith("heads.")
        and canonical(status.name, prefixes) not in replaced
    }
    return {**unchanged, **adapter.tensors}


def _with_head(
    family: Family,
    spec: EncoderSpec,
    tensors: dict[str, StoredTensor],
    config: JsonSettings,
    adapter: Adapter,
) -> tuple[EncoderSpec, dict[str, StoredTensor]]:
    """The spec with the adapter's head, and with a pooler only if that reads it."""

    def detect(names: Iterable[str]) -> EncoderSpec:
        shapes = {canonical(name, family.prefixes): tensors[name].shape for name in names}
        return family.detect_heads(spec, shapes, config)

    detected = detect(tensors)
    head = next(
        (
            candidate
            for candidate in detected.heads
            if isinstance(candidate, Classifier) and candidate.role == adapter.role
        ),
        None,
    )
    if head is None:
        raise InvalidRequest(f"its tensors are not those of a head of the family {family.name}")
    if head.reads != "pooler":
        poolers = [
            row.theirs
            for row in family.encoder_rows
            if isinstance(row, Rename) and row.ours == "pooler.dense"
        ]
        tensors = {
            name: tensor
            for name, tensor in tensors.items()
            if canonical(name, family.prefixes).rpartition(".")[0] not in poolers
        }
        detected = detect(tensors)
    return replace(detected, heads=(head,)), tensors


@dataclass(frozen=True)
class Part:
    """A matrix of theirs within one of ours."""

    ours: str
    rows: slice
    """Its rows of ours."""
    shape: tuple[int, ...]
    reorder: Rearrangement | None
    """The order of its rows, if it is not that of ours."""


def parts_of(spec: EncoderSpec, family: Family) -> dict[str, Part]:
    """Every matrix that an adapter may update, by the canonical name of its weight in `transformers`."""
    shapes = tensor_shapes(spec)
    names = [name for name, shape in shapes.items() if len(shape) == 2 and not name.startswith("embedding.")]
    parts = {}
    for move in moves(family.module_map_of(spec), names, partial(family.layer_name, spec)):
        outputs, inputs = shapes[move.ours]
        first = 0
        for theirs, rows in zip(move.theirs, move.rows_of(outputs, spec), strict=True):
            parts[theirs] = Part(move.ours, slice(first, first + rows), (rows, inputs), move.reorder)
            first += rows
    return parts


def _check_updates(base: Checkpoint, spec: EncoderSpec, adapter: Adapter) -> None:
    """Every update must be of a matrix of the model with its shape."""
    parts = parts_of(spec, base.family)
    for target, (a, b) in adapter.updates.items():
        part, shape = parts.get(canonical(target, base.family.prefixes)), (b.shape[0], a.shape[1])
        if part is None or part.shape != shape:
            has = "no such matrix" if part is None else f"one of {part.shape[0]} x {part.shape[1]}"
            why = f"it updates {target} with a matrix of {shape[0]} x {shape[1]}, and there is {has}"
            raise _other(base, adapter, why)


def _other(base: Checkpoint, adapter: Adapter, why: str) -> InvalidRequest:
    return InvalidRequest(
        f"the adapter {adapter.name} was made for {adapter.base or 'another model'} and does not fit "
        f"{base.source.name}: {why.rstrip('.')}"
    )


def check_base(checkpoint: Checkpoint) -> None:
    """Refuse weights that are not those that the checkpoint's adapter was trained on.

    Raises:
        InvalidRequest: they are others.
    """
    adapter = checkpoint.adapter
    assert adapter is not None
    if adapter.fingerprint is not None and adapter.fingerprint != fingerprint(checkpoint):
        raise InvalidRequest(
            f"the adapter {adapter.name} was trained on {adapter.base}, and {checkpoint.source.folder} has "
            "other weights of the same shapes; load the adapter on the model that it was trained on"
        )


Factors = tuple[NDArray[np.float64], NDArray[np.float64]]
"""A (R, K) and B (N, R) of a low-rank update of N x K."""


RowUpdates = list[tuple[slice, Factors]]
"""The rows of a matrix that each low-rank update changes."""


def factors_of(checkpoint: Checkpoint) -> dict[str, RowUpdates]:
    """The low-rank updates of the checkpoint's adapter, by our name of the matrix. Rows are in our order."""
    adapter, family = checkpoint.adapter, checkpoint.family
    assert adapter is not None
    arrays = read_arrays(
        {f"{target}{end}": tensor for target, ab in adapter.updates.items() for end, tensor in enumerate(ab)}
    )
    parts = parts_of(checkpoint.spec, family)
    factors: dict[str, RowUpdates] = {}
    for target in adapter.updates:
        part = parts[canonical(target, family.prefixes)]
        a_RK, b_NR = (arrays[f"{target}{end}"].astype(np.float64) for end in (0, 1))
        b_NR = in_our_order(b_NR, part.reorder, checkpoint.spec)
        factors.setdefault(part.ours, []).append((part.rows, (a_RK, b_NR)))
    return factors


def updated(weight: Float32s, updates: RowUpdates, scale: float) -> Float32s:
    """A matrix with low-rank updates, ``scale * B A`` each, which are added in float64."""
    exact = weight.astype(np.float64)
    for rows, (a_RK, b_NR) in updates:
        exact[rows] += scale * (b_NR @ a_RK)
    return exact.astype(np.float32)


class AdaptedArrays(StoredArrays):
    """`StoredArrays` of a checkpoint with an adapter: its base's weights with its updates, and its head."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        assert checkpoint.adapter is not None
        check_base(checkpoint)
        self._scale, self._updates = checkpoint.adapter.scale, factors_of(checkpoint)

    def __getitem__(self, name: str) -> Float32s:
        weight = super().__getitem__(name)
        return updated(weight, self._updates[name], self._scale) if name in self._updates else weight

    def parts(self, name: str, rows: int) -> Iterator[Float32s]:
        """See `StoredArrays`."""
        if name in self._updates:
            yield self[name]
        else:
            yield from super().parts(name, rows)

    def check(self, dtype: str) -> None:
        """See `StoredArrays`."""
        super().check(dtype)
        for name in self._updates:
            if not rounds_to_finite(self[name], dtype):
                raise not_finite_in(self._report.sources[name][0], dtype)


def fingerprint(checkpoint: Checkpoint) -> str:
    """A digest by which an adapter recognizes the weights that it was trained on.

    It covers the encoder's vectors: biases and norms, which training changes and which are read quickly.
    """
    names = _vectors(checkpoint, report_tensors(checkpoint))
    arrays = read_arrays({name: checkpoint.tensors[name] for name in names})
    digest = hashlib.sha256()
    for standard, name in sorted((canonical(name, checkpoint.family.prefixes), name) for name in names):
        digest.update(standard.encode())
        digest.update(arrays[name].astype(np.float32).tobytes())
    return digest.hexdigest()


def _vectors(checkpoint: Checkpoint, report: TensorReport) -> list[str]:
    return [
        name
        for ours, names in report.sources.items()
        for name in names
        if not ours.startswith(("heads.", "pooler.")) and len(checkpoint.tensors[name].shape) == 1
    ]

"""Add new low-rank updates to an encoder, and write the adapter that they and a head become."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from unmask.base.files import whole_folder
from unmask.encoder.encoder import Encoder, is_finite
from unmask.encoder.layers.lora import LowRankUpdate, add_update, updates
from unmask.errors import InvalidRequest, OutputError
from unmask.families import Family
from unmask.spec import ROLES, Classifier, ClassifierRole
from unmask.weights.adapters.adapter import (
    ADAPTER_FILE,
    LABEL_HEAD,
    LABELS,
    PEFT_FILE,
    PEFT_PREFIX,
    PEFT_WEIGHTS,
    A,
    B,
    fingerprint,
    stated_label_head,
)
from unmask.weights.heads.sentence_modules import to_json
from unmask.weights.read.checkpoint import Checkpoint
from unmask.weights.tensor_report import TensorMove, moves
from unmask.weights.tensors import in_their_order
from unmask.weights.write.save import their_tensors

TargetModules = Literal["all-linear", "attention", "feedforward"]
"""Which linear layers of each block are updated."""

_ATTENTION = "attention.qkv", "attention.out"
_FEEDFORWARD = "feedforward.inner", "feedforward.outer", "feedforward.earlier"
_TARGETS: Mapping[TargetModules, tuple[str, ...]] = {
    "attention": _ATTENTION,
    "feedforward": _FEEDFORWARD,
    "all-linear": (*_ATTENTION, *_FEEDFORWARD, "bottleneck", "gate"),
}
"""Modules of a block that are linear layers to update, or whose linear layers are."""


@dataclass(frozen=True)
class LowRank:
    """How linear layers are updated, in the names of `peft`."""

    r: int
    lora_alpha: float
    lora_dropout: float
    target_modules: TargetModules


def add_low_rank(encoder: Encoder, family: Family, how: LowRank) -> int:
    """Add new updates, all 0, to linear layers of every block, and return how many matrices they update.

    A matrix of ours that checkpoints of the family store as several, such as queries, keys and values, has an
    update for each of them. Matrices of experts, their routers and networks in groups are not updated.

    Raises:
        InvalidRequest: there is no such linear layer, since feed-forward networks are mixtures of experts or
            in groups.
    """
    added, targets = 0, _targets(encoder, family, how.target_modules)
    if not targets:
        raise InvalidRequest(
            f"target_modules is {how.target_modules!r}, and the feed-forward networks are mixtures of "
            "experts or in groups, whose matrices adapters do not update; take 'attention'"
        )
    for name, move in targets.items():
        linear = encoder.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        add_update(
            linear,
            LowRankUpdate(
                linear,
                outputs=move.rows_of(linear.out_features, encoder.spec),
                rank=how.r,
                scale=how.lora_alpha / how.r,
                dropout=how.lora_dropout,
            ),
        )
        added += len(move.theirs)
    return added


def _targets(encoder: Encoder, family: Family, kind: TargetModules) -> dict[str, TensorMove]:
    """Names of linear layers, and how the family stores their weights."""
    names = [
        f"layers.{number}.{part}.{inside}".removesuffix(".") + ".weight"
        for number, block in enumerate(encoder.layers)
        for part in _TARGETS[kind]
        if part in dict(block.named_modules())
        for inside, module in block.get_submodule(part).named_modules()
        if isinstance(module, nn.Linear)
    ]
    tensor_moves = moves(family.module_map_of(encoder.spec), names, partial(family.layer_name, encoder.spec))
    return {move.ours.removesuffix(".weight"): move for move in tensor_moves}


def adapter_tensors(encoder: Encoder, family: Family, role: ClassifierRole | None) -> dict[str, Tensor]:
    """The tensors of an adapter by `peft`'s names: A and B of every update, and the head of a role."""
    tensors = {}
    by_layer = updates(encoder)
    for name, move in _targets(encoder, family, "all-linear").items():
        if name not in by_layer:
            continue
        a_PRK, b_NR = by_layer[name].a_PRK.detach(), by_layer[name].b_NR.detach()
        b_NR = in_their_order(b_NR, move.reorder, encoder.spec)
        parts = torch.split(b_NR, list(by_layer[name].outputs))
        for theirs, a_RK, b_MR in zip(move.theirs, a_PRK, parts, strict=True):
            target = PEFT_PREFIX + family.prefix + theirs.removesuffix(".weight")
            tensors[target + A], tensors[target + B] = a_RK, b_MR
    if role is None:
        return {name: tensor.contiguous() for name, tensor in tensors.items()}
    whole = their_tensors(encoder, family)
    head = {move.theirs[0] for move in _head_moves(encoder, family, role)}
    for name, tensor in whole.items():
        if head & {name, name.removeprefix(family.prefix)}:
            tensors[PEFT_PREFIX + name] = tensor
    return {name: tensor.contiguous() for name, tensor in tensors.items()}


def _head_moves(encoder: Encoder, family: Family, role: ClassifierRole) -> list[TensorMove]:
    """The tensors of the head, and of the pooler if it reads that."""
    head = encoder.heads[role].spec
    assert isinstance(head, Classifier)
    parts = (f"heads.{role}.", *(["pooler."] if head.reads == "pooler" else []))
    names = [name for name in encoder.state_dict() if name.startswith(parts)]
    return moves(family.tensor_map_of(encoder.spec), names, partial(family.layer_name, encoder.spec))


def write_adapter(
    encoder: Encoder,
    checkpoint: Checkpoint,
    role: ClassifierRole | None,
    folder: Path,
    *,
    name: str,
    base: Checkpoint,
    how: LowRank | None,
    card: bytes | None = None,
    dtype: torch.dtype = torch.float32,
    labels: Mapping[str, Tensor] | None = None,
) -> None:
    """Write the adapter of an encoder as a folder that `peft` reads; it appears complete or not at all.

    Args:
        encoder: the encoder with its updates and head.
        checkpoint: the adapted model, for its family.
        role: the role of the adapter's head; None for the checkpoint's head for labels that are named with
            the text, which the base must read.
        folder: the destination.
        name: of the adapter.
        base: the checkpoint that the adapter was trained on.
        how: the updates; None if only the head was trained.
        card: the contents of README.md.
        dtype: of the stored weights.
        labels: the tensors of that head.

    Raises:
        OutputError: the folder exists and is not empty, the disk is full or read-only, or ``dtype`` cannot
            hold a number.
    """
    family = checkpoint.family
    whole = adapter_tensors(encoder, family, role)
    whole |= {PEFT_PREFIX + LABEL_HEAD + key: tensor for key, tensor in (labels or {}).items()}
    tensors = _converted(whole, name, dtype)
    config = {**checkpoint.config, **family.write(encoder.spec)}
    settings = {
        "format": 1,
        "name": name,
        "role": LABELS if role is None else role,
        "base": base.source.name,
        "fingerprint": fingerprint(base),
        "config": {key: value for key, value in config.items() if base.config.get(key) != value},
    }
    if checkpoint.label_head is not None:
        settings |= {"config": {}, "labels": stated_label_head(checkpoint.label_head)}
    with whole_folder(folder) as partial_folder:
        save_file(tensors, partial_folder / PEFT_WEIGHTS, metadata={"format": "pt"})
        peft = _peft_config(encoder, family, role, base.source.name, how)
        (partial_folder / PEFT_FILE).write_bytes(to_json(peft))
        (partial_folder / ADAPTER_FILE).write_text(
            json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n"
        )
        if card is not None:
            (partial_folder / "README.md").write_bytes(card)


def _converted(tensors: Mapping[str, Tensor], adapter: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors in the dtype that is stored.

    Raises:
        OutputError: a number is not finite in it.
    """
    converted = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    for name, tensor in converted.items():
        if not is_finite(tensor):
            largest, limit = float(tensors[name].abs().max()), torch.finfo(dtype).max
            written = str(dtype).removeprefix("torch.")
            raise OutputError(
                f"cannot write the adapter {adapter} in {written}, because {name.removeprefix(PEFT_PREFIX)} "
                f"holds {largest:,.6g} and {written} goes up to {limit:,.6g}; set adapter.dtype to bfloat16 "
                "or float32"
            )
    return converted


def _peft_config(
    encoder: Encoder, family: Family, role: ClassifierRole | None, base: str, how: LowRank | None
) -> dict[str, Any]:
    head = [] if role is None else _head_moves(encoder, family, role)
    modules = {move.theirs[0].rpartition(".")[0] for move in head}
    saved = {name.split(".")[0] for name in modules}
    # For this task `peft` saves the module qa_outputs in any case, and fails if it is part of another.
    nested = any(name.endswith(".qa_outputs") for name in modules)
    return {
        "base_model_name_or_path": base,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "lora_alpha": 1 if how is None else how.lora_alpha,
        "lora_dropout": 0.0 if how is None else how.lora_dropout,
        "modules_to_save": sorted(saved),
        "peft_type": "LORA",
        "r": 1 if how is None else how.r,
        "target_modules": NO_TARGETS if how is None else _pattern(encoder, family, how.target_modules),
        "task_type": None if nested or role is None else ROLES[role].peft_task,
    }


NO_TARGETS = "dummy-target-modules"
"""What `peft` takes for "no linear layer is updated"."""


def _pattern(encoder: Encoder, family: Family, kind: TargetModules) -> str:
    """A regular expression of the updated modules; a list of endings could also match parts of the head."""
    names = {
        re.sub(r"\.\d+\.", r".\\d+.", family.prefix + theirs.removesuffix(".weight"))
        for move in _targets(encoder, family, kind).values()
        for theirs in move.theirs
    }
    return "|".join(sorted(names)).replace(".", "\\.")

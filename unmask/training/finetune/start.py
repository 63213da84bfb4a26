"""The encoder of a fine-tuning run: a checkpoint's weights with a head for the task."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import ClassificationHead
from unmask.errors import InvalidRequest
from unmask.families.labels import OWN, default_labels
from unmask.families.native import NATIVE
from unmask.spec import Classifier, PooledVector, PoolingMode, ProblemType, Reads, role_of
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.finetune.tasks import TASKS
from unmask.training.run.base_model import load_shared_tensors, source
from unmask.training.run.callbacks import Say
from unmask.weights import Checkpoint, read_checkpoint
from unmask.weights.build import build
from unmask.weights.heads.classes import with_heads
from unmask.weights.write.adapter_export import LowRank, add_low_rank
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder
from unmask.weights.write.save import check_written

READS_OF_POOLING: Mapping[tuple[PoolingMode, ...], Reads] = {("mean",): "mean", ("cls",): "first"}
"""What the head of few-shot learning reads, by the pooling of the sentence embedding."""


def task_checkpoint(settings: FinetuneSettings, begun: Checkpoint, labels: Sequence[str]) -> Checkpoint:
    """The checkpoint that is saved in the end: the config of the first one with the task's head and labels.

    Raises:
        InvalidRequest: the family has no such head.
        CheckpointError: the config asks for something that is not supported.
    """
    if settings.few_shot is not None:
        return few_shot_checkpoint(body_checkpoint(settings, begun), labels)
    return with_config(settings, begun, _label_keys(settings, labels), TASKS[settings.task].role)


def with_config(
    settings: FinetuneSettings, begun: Checkpoint, keys: Mapping[str, Any], *roles: str
) -> Checkpoint:
    """The checkpoint with the first one's config, some other keys, and heads of some roles at least."""
    config: dict[str, Any] = {
        key: value for key, value in begun.config.items() if key not in begun.unread_config
    }
    config |= dict(settings.model.config)
    for key in ("id2label", "label2id", "num_labels", "problem_type", OWN):
        config.pop(key, None)
    config = with_heads(config | dict(keys), frozenset(roles))
    checkpoint = new_checkpoint(config, begun.tokenizer.files, name=settings.name)
    limits = [part.max_tokens for part in (checkpoint, begun) if part.max_tokens is not None]
    return replace(checkpoint, max_tokens=min(limits, default=None))


def body_checkpoint(settings: FinetuneSettings, begun: Checkpoint) -> Checkpoint:
    """The encoder of few-shot learning without a head, in the layout of its family: a sentence embedder.

    Raises:
        InvalidRequest: the first checkpoint pools in a way that no classifier reads.
    """
    pooling = begun.head.pooling if isinstance(begun.head, PooledVector) else ("mean",)
    if pooling not in READS_OF_POOLING:
        raise InvalidRequest(
            f"{begun.source.name} pools by {' and '.join(pooling)}, and the head of [few_shot] reads a "
            "vector that is pooled by mean or cls; start from another checkpoint"
        )
    checkpoint = with_config(settings, begun, {})
    spec = replace(checkpoint.spec, pooler=None, heads=())
    check_written(checkpoint.family, spec, checkpoint.config)
    return replace(checkpoint, spec=spec, head=PooledVector(pooling, normalize=True))


def few_shot_checkpoint(body: Checkpoint, labels: Sequence[str]) -> Checkpoint:
    """The encoder of few-shot learning with its head, which no class of `transformers` has: so the layout is
    unmask's own."""
    assert isinstance(body.head, PooledVector)
    head = Classifier(
        "sequence",
        len(labels),
        READS_OF_POOLING[body.head.pooling],
        labels=tuple(labels),
        problem_type="single_label_classification",
        normalize=body.head.normalize,
    )
    return replace(body, family=NATIVE, config={}, spec=replace(body.spec, heads=(head,)))


def _label_keys(settings: FinetuneSettings, labels: Sequence[str]) -> Mapping[str, Any]:
    task = TASKS[settings.task]
    if not task.head.has_labels:
        return {}
    names = tuple(labels) or default_labels(1)
    keys: dict[str, Any] = {
        "id2label": {str(number): name for number, name in enumerate(names)},
        "label2id": {name: number for number, name in enumerate(names)},
    }
    if task.problem is not None:
        keys["problem_type"] = task.problem
    return keys


def task_encoder(
    settings: FinetuneSettings, checkpoint: Checkpoint, begun: Checkpoint, say: Say, *, weights: bool = True
) -> Encoder:
    """The encoder with the first checkpoint's weights and a head, new unless that checkpoint has the same.

    Args:
        settings: settings of the run.
        checkpoint: see `task_checkpoint`.
        begun: the checkpoint to start from.
        say: called with a sentence about new and left-out weights.
        weights: False skips reading weights, for a run that is resumed.

    Raises:
        InvalidRequest: a tensor of the encoder has another shape.
        CheckpointError: the weights cannot be read.
    """
    torch.manual_seed(settings.seed)
    encoder = new_encoder(checkpoint, kernel=settings.model.kernel)
    role = TASKS[settings.task].role
    if weights:
        load_weights(encoder, build(begun), role, begun, say, fitted=settings.few_shot is not None)
    head = encoder.heads[role]
    layer = encoder.spec.layers[0].dropout
    rate = layer if settings.model.head_dropout is None else settings.model.head_dropout
    assert isinstance(head, ClassificationHead)
    head.dropout.p = rate
    if settings.frozen or settings.adapter is not None:
        for name, part in encoder.named_children():
            part.requires_grad_(name in ("heads", "pooler"))
    if settings.few_shot is not None:
        head.requires_grad_(False)  # it is fitted, not trained
    if (how := low_rank(settings)) is not None:
        add_low_rank(encoder, checkpoint.family, how)
    return encoder


def low_rank(settings: FinetuneSettings) -> LowRank | None:
    """The low-rank updates that a run trains; None if it trains none."""
    adapter = settings.adapter
    if adapter is None or adapter.kind == "head":
        return None
    return LowRank(adapter.r, adapter.lora_alpha, adapter.lora_dropout, adapter.target_modules)


def load_weights(
    encoder: Encoder, other: Encoder, role: str, begun: Checkpoint, say: Say, *, fitted: bool = False
) -> None:
    """Load the other encoder's weights, but its head of that role only for the same task, and never if the
    new head is ``fitted``."""
    stored = other.state_dict()
    prefix, name = f"heads.{role}.", str(begun.source.folder)
    head, before = (_head(candidate, role) for candidate in (encoder, other))
    is_same = before is not None and before == head
    if before is not None and (fitted or not is_same):
        stored = {tensor: value for tensor, value in stored.items() if not tensor.startswith(prefix)}
    if is_same and not fitted:
        say(f"the head of {name} for {before} is trained further, because the task is the same")
    elif before is not None and not fitted:
        say(f"the head of {name} for {before} is left out, and the run starts with a new one for {head}")
    new, unused = load_shared_tensors(encoder, stored, name)
    expected = prefix if fitted or before is not None else ()
    layers = sorted({tensor.rpartition(".")[0] for tensor in new if not tensor.startswith(expected)})
    heads = sorted({tensor.split(".")[1] for tensor in unused if "heads." in tensor})
    if layers:
        say(f"{name} has no {', '.join(layers)}; the run starts with new weights there")
    if heads:
        say(f"the heads of {name} that the task does not use are left out: {', '.join(heads)}")


@dataclass(frozen=True)
class _Predicts:
    """What a head predicts; the weights of two heads mean the same if it is equal."""

    role: str
    problem: ProblemType
    classes: int
    labels: tuple[str, ...] | None

    def __str__(self) -> str:
        if self.role == "span":
            return "answers"
        if self.problem == "regression":
            return "numbers"
        names = ", ".join((self.labels or ())[:6]) or f"{self.classes} classes without names"
        more = f" and {self.classes - 6} more" if self.labels and self.classes > 6 else ""
        return f"{'several of ' if self.problem == 'multi_label_classification' else ''}{names}{more}"


def _head(encoder: Encoder, role: str) -> _Predicts | None:
    """What the head of a role predicts; None if the encoder has no such head."""
    for head in encoder.spec.heads:
        if isinstance(head, Classifier) and head.role == role:
            default: ProblemType = "regression" if head.classes == 1 else "single_label_classification"
            return _Predicts(role, head.problem_type or default, head.classes, head.labels)
    return None


def teacher_of(settings: FinetuneSettings, base: Path, student: Checkpoint) -> Encoder | None:
    """The encoder whose predictions are learned, with its head; None without ``[soft_labels]``.

    Raises:
        InvalidRequest: it has no head of the task, another vocabulary, other labels, or reads shorter texts.
        CheckpointError: it cannot be read.
    """
    if settings.soft_labels is None:
        return None
    name, role = settings.soft_labels.teacher, TASKS[settings.task].role
    teacher = read_checkpoint(source(name, base))
    theirs, ours = (
        next((head for head in checkpoint.spec.heads if role_of(head) == role), None)
        for checkpoint in (teacher, student)
    )
    assert isinstance(ours, Classifier)
    vocabularies = [checkpoint.tokenizer.engine.get_vocab() for checkpoint in (teacher, student)]
    longest = settings.data.max_tokens or student.max_tokens
    reason = None
    if not isinstance(theirs, Classifier):
        reason = f"has no {role} head; fine-tune it for the task first"
    elif vocabularies[0] != vocabularies[1]:
        reason = "has another vocabulary than the model; take a teacher with the same tokenizer"
    elif theirs.classes != ours.classes or (theirs.labels and ours.labels and theirs.labels != ours.labels):
        listed = [", ".join(head.labels or (f"{head.classes} classes",)) for head in (theirs, ours)]
        reason = (
            f"predicts {listed[0]}, and the run {listed[1]}; name its labels in that order in data.labels"
        )
    elif teacher.max_tokens is not None and (longest is None or longest > teacher.max_tokens):
        reason = f"reads {teacher.max_tokens} tokens; set data.max_tokens to that"
    if reason is not None:
        raise InvalidRequest(f"soft_labels.teacher is {name}, which {reason}")
    return build(teacher)

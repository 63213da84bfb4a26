"""A checkpoint that does not exist yet: from keys of a config.json and a tokenizer to an encoder to train.

Saved by `unmask.model.weights.save.save`, it is a folder like any other of its family.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unmask.errors import CorruptCheckpoint, InvalidRequest, UnknownArchitecture
from unmask.model.encoder import Encoder
from unmask.model.families import Family, family_of
from unmask.model.families.family import CLASSES, Shapes
from unmask.model.layers import Initialisation
from unmask.model.spec import EncoderSpec, role_of
from unmask.model.spec.config import WITHOUT_EFFECT
from unmask.model.spec.rows import Concat, Rename, Reorder
from unmask.model.weights.build import on_meta
from unmask.model.weights.checkpoint import Checkpoint, max_tokens, trained_tokens
from unmask.model.weights.claims import moves
from unmask.model.weights.embedding_head import read_head
from unmask.model.weights.source import Source
from unmask.settings import Settings
from unmask.text import Tokenizer

NOT_TRAINED: dict[str, tuple[object, ...]] = {
    "embd_pdrop": (0.0, None),
    "mlp_dropout": (0.0, None),
    "sinusoidal_pos_embds": (False,),
}
"""Keys that matter in training alone, where only these values are built."""

CLASSES_OF = {"next_sentence": 2, "sentence_order": 2, "replaced": 1, "span": 2}
"""How many classes a head decides among, where its role says it."""


def fresh(
    config: Mapping[str, Any], tokenizer_files: Mapping[str, bytes], *, name: str = "fresh"
) -> Checkpoint:
    """The checkpoint of an encoder that is still to be trained; no weight is made, see `new_encoder`.

    The family is that of ``model_type``, and the heads are those of the class in ``architectures``, such as
    ``["BertForPreTraining"]``. A padding id that the config leaves out is the tokenizer's.

    Args:
        config: what its config.json is to say.
        tokenizer_files: file name -> content, as a checkpoint folder has them.
        name: what it is called in reports.

    Raises:
        UnknownArchitecture: no such family or class, or a key that nothing here reads.
        InvalidRequest: config and tokenizer do not belong together, or the encoder cannot be built.
    """
    settings = Settings("the config", dict(config))
    family = family_of(settings.values)
    tokenizer = Tokenizer.from_files(tokenizer_files, settings.maybe("model_type", str))
    for key, built in NOT_TRAINED.items():
        if key in settings.values:
            settings.require(key, *built)
    spec = _with_padding(_spec(family, settings), tokenizer)
    unread = settings.unread() - set(WITHOUT_EFFECT)
    if unread:
        raise UnknownArchitecture(
            f"the config says {', '.join(sorted(unread))}, which nothing here reads; "
            "take it out, or spell it as the family's published config.json files do"
        )
    _check_vocabulary(spec, tokenizer)
    _check_written(family, spec, settings.values)
    return Checkpoint(
        source=Source(Path(name), name),
        family=family,
        spec=spec,
        config=settings.values,
        unread_config=(),
        tensors={},
        stored_tokenizer=tokenizer,
        head=read_head({}, lambda _: None),
        max_tokens=max_tokens(spec, {}, tokenizer),
        trained_tokens=trained_tokens(spec, tokenizer),
        sentence_files={},
    )


def new_encoder(
    checkpoint: Checkpoint,
    initialisation: Initialisation = "normal",
    *,
    seed: int | None = None,
    kernel: str | None = None,
) -> Encoder:
    """An encoder with fresh weights in float32, on the CPU, in training mode.

    Args:
        checkpoint: of `fresh`, or any other: its spec alone counts.
        initialisation: how weights are drawn, see `Initialisation`.
        seed: decides every draw, and torch's global generator is left as it was; None draws from that.
        kernel: the attention kernel to use; None takes the first that can.

    Raises:
        InvalidRequest: there is no such initialisation.
    """
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.manual_seed(seed)
        encoder = Encoder(checkpoint.spec, kernel=kernel)
        if initialisation != "normal":
            encoder.initialise(initialisation)
    return encoder


def fitted(config: Mapping[str, Any], tokenizer: Tokenizer, *, multiple: int = 64) -> dict[str, Any]:
    """A config with the vocabulary and the padding id of a tokenizer, and everything else as it was.

    The vocabulary is rounded up to a multiple, which matrix products on GPUs are faster with.
    """
    if multiple < 1:
        raise InvalidRequest(f"multiple is {multiple}; it must be at least 1")
    family = family_of(config)
    spec = family.read(Settings("the config", config), "published")
    size = -(-tokenizer.vocabulary_size // multiple) * multiple
    wanted = replace(spec.embedding, vocabulary=size, padding_id=_padding_id(tokenizer))
    before, after = family.write(spec), family.write(replace(spec, embedding=wanted))
    return {**config, **{key: value for key, value in after.items() if value != before[key]}}


def _spec(family: Family, config: Settings) -> EncoderSpec:
    """The encoder with the heads of the class that ``architectures`` names."""
    base = family.read(config, "published")
    found: dict[str, list[_Choice]] = {}
    for choice in _choices(family, base, config):
        found.setdefault(str(choice.written["architectures"][0]), []).append(choice)
    wanted = config.values.get("architectures")
    if wanted is None and len(found) == 1:
        wanted = list(found)
    if not isinstance(wanted, list) or len(wanted) != 1 or wanted[0] not in found:
        raise UnknownArchitecture(
            f"the config says architectures is {wanted!r}; of the family {family.name} it can be a list "
            f"with one of {', '.join(found)}"
        )
    # Two kinds of head may go by one class, and a key beside it says which (DeBERTa's legacy).
    chosen = min(
        found[wanted[0]],
        key=lambda choice: sum(
            config.values.get(key, value) != value for key, value in choice.written.items()
        ),
    )
    return family.adapt(base, chosen.shapes, config)


@dataclass(frozen=True)
class _Choice:
    """One set of heads on an encoder."""

    shapes: Shapes
    """What `Family.adapt` sees them by."""
    written: Mapping[str, Any]
    """The config.json of the encoder with them."""


def _choices(family: Family, base: EncoderSpec, config: Settings) -> Iterator[_Choice]:
    """Every set of heads for which the family has a class and names of tensors."""
    named = {row.ours.split(".")[1] for row in _named(family) if row.ours.startswith("heads.")}
    pooler = {f"{name}.weight": (base.width, base.width) for name in _theirs(family, "pooler.dense")}
    for roles, suffix in CLASSES.items():
        if not roles <= named:
            continue
        own = Settings(config.name, {**config.values, "architectures": [suffix]})
        shapes = {name: shape for role in roles for name, shape in _head_shapes(family, base, role, config)}
        spec = family.adapt(base, shapes | pooler, own)
        read = any(getattr(head, "reads", None) == "pooler" for head in spec.heads)
        if read or (base.pooler is not None and not roles):
            shapes |= pooler
        else:
            spec = family.adapt(base, shapes, own)
        if base.heads or frozenset(map(role_of, spec.heads)) == roles:
            yield _Choice(shapes, family.write(spec))


def _named(family: Family) -> Iterator[Rename | Concat | Reorder]:
    return (row for row in family.rows if isinstance(row, Rename | Concat | Reorder))


def _theirs(family: Family, ours: str) -> Iterator[str]:
    for row in _named(family):
        if row.ours == ours:
            yield from row.theirs if isinstance(row, Concat) else (row.theirs,)


def _head_shapes(
    family: Family, base: EncoderSpec, role: str, config: Settings
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What `Family.adapt` looks for to see a head: its tensors, by the length of their first axis."""
    predicts = role in ("masked", "enhanced")
    labels = config.values.get("id2label")
    sizes = {
        "transform.dense": base.embedding.width if predicts else base.width,
        "decoder": base.embedding.vocabulary,
        "out": CLASSES_OF.get(role, len(labels) if isinstance(labels, dict) else 2),
    }
    for row in _named(family):
        place = row.ours.removeprefix(f"heads.{role}.")
        if place in sizes and place != row.ours:
            for theirs in _theirs(family, row.ours):
                yield f"{theirs}.weight", (sizes[place],)
                yield f"{theirs}.bias", (sizes[place],)


def _padding_id(tokenizer: Tokenizer) -> int | None:
    pad = tokenizer.special_tokens.get("pad")
    return None if pad is None else tokenizer.token_to_id(pad)


def _with_padding(spec: EncoderSpec, tokenizer: Tokenizer) -> EncoderSpec:
    said, own = spec.embedding.padding_id, _padding_id(tokenizer)
    if said is None:
        return replace(spec, embedding=replace(spec.embedding, padding_id=own))
    if own is not None and own != said:
        raise InvalidRequest(
            f"the config's padding id is {said} and the tokenizer pads with {own}; set pad_token_id to {own}"
        )
    return spec


def _check_vocabulary(spec: EncoderSpec, tokenizer: Tokenizer) -> None:
    has, wanted = spec.embedding.vocabulary, tokenizer.vocabulary_size
    if has < wanted:
        raise InvalidRequest(
            f"the config's vocabulary is {has} and the tokenizer has {wanted} pieces; "
            f"set vocab_size to at least {wanted}"
        )
    padding = spec.embedding.padding_id
    if padding is not None and not 0 <= padding < has:
        raise InvalidRequest(
            f"the config's padding id is {padding} and its vocabulary {has}; leave pad_token_id out"
        )


def _check_written(family: Family, spec: EncoderSpec, config: Mapping[str, Any]) -> None:
    """What is saved reads back as the same encoder, or nothing is trained at all."""
    try:
        state = on_meta(spec).state_dict()
    except (RuntimeError, ValueError) as error:
        raise InvalidRequest(f"an encoder of these sizes cannot be built: {error}") from None
    shapes: dict[str, tuple[int, ...]] = {}
    for move in moves(family.rows, state, partial(family.layer_name, spec)):
        first, *rest = state[move.ours].shape or (1,)
        shapes |= dict.fromkeys(move.theirs, (first // len(move.theirs), *rest))
    back = _read_back(family, {**config, **family.write(spec)}, shapes)
    if back != spec:
        raise InvalidRequest(
            f"the family {family.name} cannot write this encoder so that it reads back as the same; "
            "change the keys that are unlike those of its published config.json files"
        )


def _read_back(family: Family, config: Mapping[str, Any], shapes: Shapes) -> EncoderSpec:
    settings = Settings("the config as it is written", config)
    if family_of(config) is not family:
        raise CorruptCheckpoint(f"{settings.name} is of another family than {family.name}")
    return family.adapt(family.read(settings, "published"), shapes, settings)

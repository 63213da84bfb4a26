"""The start of a pretraining run: its tokenizer, its encoder, and the text that they are for."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from unmask.base.files import read_bytes, replaced_folder
from unmask.base.stores import is_url
from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest, UnmaskError
from unmask.families import family_of, published_config
from unmask.spec import EncoderSpec, PooledVector
from unmask.spec.config import WITHOUT_EFFECT
from unmask.text import Tokenizer
from unmask.text.tokenizer import TOKENIZER_FILES
from unmask.training.data.labeled import digest_of
from unmask.training.data.sources import format_of, input_files
from unmask.training.data.train_tokenizer import sample, train_tokenizer
from unmask.training.objectives.build import saved_spec, trained_heads
from unmask.training.run.base_model import (
    first_checkpoint,
    load_shared_tensors,
    source,
    with_repeated_positions,
)
from unmask.training.run.callbacks import Say
from unmask.training.run.checkpoint import MANIFEST, load_snapshot, placed
from unmask.training.run.loop import Loop
from unmask.training.run.settings import ModelSettings, RunSettings
from unmask.training.run.state import load_averages, load_moments, load_progress, load_weights
from unmask.weights import Checkpoint, read_checkpoint
from unmask.weights.build import build
from unmask.weights.heads.classes import with_heads
from unmask.weights.read.fingerprint import fingerprint
from unmask.weights.write.new_checkpoint import (
    check_config,
    new_checkpoint,
    new_encoder,
    with_tokenizer,
    without_length,
)
from unmask.weights.write.save import check_written

MADE_OF = "made-of.sha256"
"""Beside a tokenizer that a run trained: the SHA-256 of its text and settings."""

LEAST_TOKENS = 3
"""Tokens of the shortest text: one between two special tokens."""


def run_tokenizer(
    settings: RunSettings, base: Path, out: Path, say: Say, *, begun: bool = False
) -> Tokenizer:
    """The tokenizer of the checkpoint to start from, of a folder, or trained once and stored in ``out``.

    Args:
        settings: settings of the run.
        base: the folder of the run file.
        out: the run's folder.
        say: called with a sentence about a tokenizer that is trained.
        begun: the run has a checkpoint, which is of the stored tokenizer. Before the first one, a stored
            tokenizer of other text or settings is trained again.

    Raises:
        InvalidRequest: the folder holds no tokenizer, or it cannot be trained as requested.
        OutputError: a new tokenizer cannot be written.
    """
    check_run(settings, base)
    options = settings.tokenizer
    if settings.model.start_from is not None:
        tokenizer = first_checkpoint(settings, base).tokenizer
        if tokenizer.known is not None:
            raise InvalidRequest(
                f"the tokenizer of {settings.model.start_from} has {tokenizer.vocabulary_size} pieces and "
                f"the model vectors for {tokenizer.known} ids; start from another checkpoint"
            )
        return tokenizer
    if options.folder is not None:
        folder = base / options.folder
    else:
        assert options.train is not None
        folder = out / "tokenizer"
        if not (begun and (folder / "tokenizer.json").is_file()):
            _train_tokenizer(settings, base, folder, say)
    files = {
        name: read_bytes(folder / name, InvalidRequest)
        for name in TOKENIZER_FILES
        if (folder / name).is_file()
    }
    if not files:
        raise InvalidRequest(
            f"tokenizer.folder names {folder}, which holds none of {', '.join(TOKENIZER_FILES)}"
        )
    tokenizer = Tokenizer.from_files(files)
    if options.train is not None and tokenizer.vocabulary_size < options.vocabulary:
        say(
            f"the tokenizer has {tokenizer.vocabulary_size:,} tokens instead of {options.vocabulary:,}, "
            "because its text gives no more"
        )
    return tokenizer


def _train_tokenizer(settings: RunSettings, base: Path, folder: Path, say: Say) -> None:
    """Train the tokenizer of a run into a folder, unless it holds the one of the same text and settings."""
    options = settings.tokenizer
    assert options.train is not None
    made_of = digest_of(chain([options], sample(settings.data.sources, base, options.sample_bytes)))
    if (folder / MADE_OF).is_file() and (folder / MADE_OF).read_text(encoding="utf-8") == made_of:
        return
    say(f"training a tokenizer with {options.vocabulary:,} tokens")
    texts = sample(settings.data.sources, base, options.sample_bytes)
    files = train_tokenizer(texts, options.train, options.vocabulary, lowercase=options.lowercase)
    with replaced_folder(folder) as partial:
        for name, content in files.items():
            (partial / name).write_bytes(content)
        (partial / MADE_OF).write_text(made_of, encoding="utf-8", newline="\n")


def check_run(settings: RunSettings, base: Path) -> None:
    """Check what can be checked before a tokenizer is trained and text is tokenized.

    Raises:
        InvalidRequest: a file is missing, or the objective or the encoder's config is invalid.
        CheckpointError: the config asks for something that is not supported.
    """
    trained_heads(settings.objective)
    data = settings.data
    for text in () if is_url(data.cache) else (*data.sources, *data.held_out):
        for path in input_files(text, base):
            format_of(path, text)
    model = settings.model
    if model.start_from is not None:
        return
    there = {} if model.architecture is None else published_config(model.architecture)
    config = _with_heads(settings, {**there, **_own_config(settings)})
    spec, family = check_config(config), family_of(config)
    check_written(family, saved_spec(settings.objective, spec, family), config)
    limit = longest(spec)
    if limit is not None and limit < LEAST_TOKENS:
        raise InvalidRequest(
            f"the encoder's config allows texts of at most {limit} tokens, and the shortest have "
            f"{LEAST_TOKENS}; raise the limit (max_position_embeddings in most families)"
        )


def _own_config(settings: RunSettings) -> dict[str, Any]:
    """The run file's keys of config.json, without those that only affect training, which are not saved."""
    return {key: value for key, value in settings.model.config.items() if key != "gradient_checkpointing"}


def run_encoder(
    settings: RunSettings, base: Path, tokenizer: Tokenizer, say: Say, *, weights: bool = True
) -> tuple[Checkpoint, Encoder]:
    """The checkpoint that is finally saved, and its encoder with the run's initial weights.

    Args:
        settings: settings of the run.
        base: the folder of the run file.
        tokenizer: see `run_tokenizer`.
        say: called with a sentence about everything of another checkpoint that is not loaded.
        weights: False skips reading the weights of another checkpoint when a run is resumed.

    Raises:
        InvalidRequest: config, tokenizer and checkpoint do not match.
        CheckpointError: the checkpoint cannot be used, or the config asks for something that is not
            supported.
    """
    model = settings.model
    keys = _own_config(settings)
    begun = None
    if model.start_from is not None:
        begun = first_checkpoint(settings, base)
        if begun.unread_config:
            say(f"of {begun.source.folder}'s config.json, {_listed(begun.unread_config)} are ignored")
        there = {key: value for key, value in begun.config.items() if key not in begun.unread_config}
        config = _with_heads(settings, {**there, **keys})
    else:
        there = {} if model.architecture is None else published_config(model.architecture)
        rows = _teacher_rows(settings, base)
        config = with_tokenizer(_with_heads(settings, {**there, **keys}), tokenizer, rows=rows)
    files = tokenizer.files
    if begun is not None and longest(check_config(config)) != longest(begun.spec):
        files = without_length(files)  # the length limit of the other checkpoint
    checkpoint = new_checkpoint(config, files, name=settings.name)
    if begun is not None:
        checkpoint = _with_pooling(checkpoint, begun, say)
    if there:
        _refuse_idle(keys, there, config, checkpoint)
    torch.manual_seed(settings.seed)
    encoder = new_encoder(checkpoint, model.initialization, kernel=model.kernel)
    if begun is not None and weights:
        load_matching_weights(
            encoder, build(begun), str(begun.source.folder), say, repeat_positions=model.repeat_positions
        )
    return checkpoint, encoder


def longest(spec: EncoderSpec) -> int | None:
    """The longest text that an encoder should be trained on; None if its config sets no limit.

    This holds even if it could read longer texts, because the saved config states the training length.
    """
    positions = spec.embedding.positions
    rows = None if positions is None else positions.rows - positions.offset
    limits = [spec.max_tokens, spec.trained_tokens, rows]
    return min((limit for limit in limits if limit is not None), default=None)


def _with_pooling(checkpoint: Checkpoint, begun: Checkpoint, say: Say) -> Checkpoint:
    """The checkpoint with the sentence-embedding settings of the one it starts from."""
    if not isinstance(begun.head, PooledVector):
        return checkpoint
    if begun.head.projections:
        say(
            f"the pooling of {begun.source.folder} is left out, because the layers after it are not part of "
            "this run"
        )
        return checkpoint
    if checkpoint.spec.width != begun.spec.width:
        say(f"the pooling of {begun.source.folder} is left out, because it is for another width")
        return checkpoint
    say(f"the pooling of {begun.source.folder} ({', '.join(begun.head.pooling)}) is kept")
    limits = [part.max_tokens for part in (checkpoint, begun) if part.max_tokens is not None]
    return replace(
        checkpoint,
        head=begun.head,
        sentence_files=begun.sentence_files,
        max_tokens=min(limits, default=None),
    )


def _with_heads(settings: RunSettings, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with an architecture that has the objective's heads, unless the run file names one."""
    extended = with_heads(config, trained_heads(settings.objective))
    architectures = settings.model.config.get("architectures")
    if architectures is not None and extended["architectures"] != architectures:
        (name,) = extended["architectures"]
        raise InvalidRequest(
            f"model.config's architectures is {architectures!r}, which lacks heads that the objective "
            f"trains; name {name}, or leave architectures out"
        )
    return extended


def _refuse_idle(
    keys: Mapping[str, Any], there: Mapping[str, Any], config: Mapping[str, Any], checkpoint: Checkpoint
) -> None:
    """Refuse a key of ``model.config`` that another key of the underlying config overrides."""
    for key in keys.keys() - set(WITHOUT_EFFECT):
        if key in there and there[key] == keys[key]:
            continue
        without = {name: value for name, value in config.items() if name != key}
        if key in there:
            without[key] = there[key]
        try:
            other = new_checkpoint(without, checkpoint.tokenizer.files).spec
        except UnmaskError:
            continue  # a required key
        if other == checkpoint.spec:
            raise InvalidRequest(
                f"model.config's {key} changes nothing in the encoder: another key "
                "overrides it, or the value is the same; name that key, or leave it out"
            )


def load_matching_weights(
    encoder: Encoder, other: Encoder, name: str, say: Say, *, repeat_positions: bool = False
) -> None:
    """Copy the weights of another encoder, called ``name``; tensors in only one of them are reported to
    ``say``.

    Raises:
        InvalidRequest: a tensor's shape differs, or see `with_repeated_positions`.
    """
    stored = with_repeated_positions(encoder, other, name) if repeat_positions else other.state_dict()
    new, unused = load_shared_tensors(encoder, stored, name)
    if new:
        say(f"{name} has no {_listed(new)}; the run starts with new weights there")
    if unused:
        say(f"{_listed(unused)} of {name} are not in this run's encoder and are left out")


def run_objective(settings: RunSettings, base: Path) -> dict[str, Any]:
    """The objective's table, with a teacher's path resolved from the run file's folder."""
    table = dict(settings.objective)
    teacher = table.get("teacher")
    if isinstance(teacher, str) and (base / teacher).is_dir():
        table["teacher"] = str((base / teacher).resolve())
    return table


def _teacher_rows(settings: RunSettings, base: Path) -> int:
    """The vocabulary size of the teacher, which a student shares; 0 without a teacher."""
    teacher = settings.objective.get("teacher")
    if not isinstance(teacher, str):
        return 0
    return read_checkpoint(source(teacher, base)).spec.embedding.vocabulary


def run_inputs(settings: RunSettings, base: Path) -> dict[str, str]:
    """Digests of the checkpoints that a run starts from and learns from, by their names in errors."""
    inputs, contents = {}, "weights, config or tokenizer of"
    if settings.model.start_from is not None:
        inputs[f"{contents} the checkpoint that model.start_from names"] = first_checkpoint(settings, base)
    teacher = settings.objective.get("teacher")
    if isinstance(teacher, str):
        inputs[f"{contents} the teacher"] = read_checkpoint(source(teacher, base))
    return {name: fingerprint(checkpoint, ()) for name, checkpoint in inputs.items()}


def _listed(names: Mapping[str, Any] | list[str] | tuple[str, ...]) -> str:
    listed = list(names)
    return ", ".join(listed[:3]) + (f" and {len(listed) - 3} more" if len(listed) > 3 else "")


def start_with_moments(model: ModelSettings, base: Path, loop: Loop, say: Callable[[str], None]) -> None:
    """Initialize a loop before its first step from the checkpoint ``model.start_from``.

    The number of processes and ``distributed.kind`` may differ from those of the other run.

    Args:
        model: the new run's model settings.
        base: the folder that paths in the settings are relative to.
        loop: the new run's loop.
        say: called with a sentence about what was loaded.

    Raises:
        InvalidRequest: ``start_from`` is not a checkpoint of a run, or has a different objective, shapes,
        optimizer or, with ``progress``, text.
        CorruptCheckpoint: the checkpoint is damaged.
    """
    assert model.start_from is not None
    folder = base / model.start_from
    if not (folder / MANIFEST).is_file():
        raise InvalidRequest(
            f"model.moments is true and {folder}, which model.start_from names, is not a checkpoint of a "
            "run; name one, such as runs/first/checkpoints/step-00001000, or leave moments out"
        )
    snapshot = placed(load_snapshot(folder), loop)
    try:
        load_weights(snapshot, loop)
        load_moments(snapshot, loop)
    except (RuntimeError, KeyError, InvalidRequest) as error:
        reason = "; ".join(line.strip() for line in str(error).splitlines()[:2])
        raise InvalidRequest(
            f"{folder} was trained with a different objective, sizes or optimizer, so its moments "
            f"do not fit this run; make them the same, or leave moments out ({reason})"
        ) from None
    averages = snapshot.state["averages"]
    if loop.averages is not None and averages:
        load_averages(snapshot, loop.averages)
    elif loop.averages is not None:
        loop.averages.restart()
    elif averages:
        say(f"{folder} has averages of its weights, and this run keeps none; they are not loaded")
    if model.progress:
        load_progress(snapshot, loop)
        say(f"branching off after step {snapshot.step:,} of {folder}")
    else:
        say(f"starting with weights and moments of {folder}")

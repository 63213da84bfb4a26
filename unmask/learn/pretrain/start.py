"""What a run begins with: its tokenizer, its encoder, and where its file's paths lead."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unmask.errors import CheckpointNotFound, InvalidRequest, UnmaskError
from unmask.files import read_bytes, whole_folder
from unmask.learn.data import sample, train_tokenizer
from unmask.learn.data.sources import format_of, input_files
from unmask.learn.objectives.build import trained_heads
from unmask.learn.pretrain.checkpoint import MANIFEST
from unmask.learn.pretrain.settings import Device, RunSettings
from unmask.model.encoder import Encoder
from unmask.model.families import published_config
from unmask.model.spec import EncoderSpec, PooledVector
from unmask.model.spec.config import WITHOUT_EFFECT
from unmask.model.weights import Checkpoint, Source, find, read_checkpoint
from unmask.model.weights.build import build
from unmask.model.weights.classes import with_heads
from unmask.model.weights.for_others import without_length
from unmask.model.weights.new_checkpoint import check_config, new_checkpoint, new_encoder, with_tokenizer
from unmask.text import Tokenizer
from unmask.text.tokenizer import TOKENIZER_FILES

Say = Callable[[str], None]

LEAST_TOKENS = 3
"""Of a text: one of its own between two special ones."""


def choose_device(wanted: Device, local: int = 0) -> torch.device:
    """The device of a process.

    Args:
        wanted: by the run file.
        local: the process's number among those of its machine; each has a CUDA device of its own.

    Raises:
        InvalidRequest: cuda is wanted and not there, or there are fewer devices than processes.
    """
    there = torch.cuda.is_available()
    if wanted == "cuda" and not there:
        raise InvalidRequest("device is cuda, and torch finds no CUDA device here; use cpu or auto")
    if not there or wanted == "cpu":
        return torch.device("cpu")
    if local >= torch.cuda.device_count():
        raise InvalidRequest(
            f"process {local + 1} of this machine has no CUDA device, of which there are "
            f"{torch.cuda.device_count()}; start fewer processes, or set device to cpu"
        )
    return torch.device("cuda", local)


def run_tokenizer(settings: RunSettings, base: Path, out: Path, say: Say) -> Tokenizer:
    """The tokenizer of the checkpoint to start from, of a folder, or trained once and kept in ``out``.

    Raises:
        InvalidRequest: the folder holds none, or it cannot be trained as asked.
        OutputError: a new one cannot be written.
    """
    check_run(settings, base)
    wanted = settings.tokenizer
    if settings.model.start_from is not None:
        return read_checkpoint(source(settings.model.start_from, base)).tokenizer
    if wanted.folder is not None:
        folder = base / wanted.folder
    else:
        assert wanted.train is not None
        folder = out / "tokenizer"
        if not (folder / "tokenizer.json").is_file():
            say(f"training a tokenizer of {wanted.vocabulary:,} pieces")
            texts = sample(settings.data.sources, base, wanted.sample_bytes)
            files = train_tokenizer(texts, wanted.train, wanted.vocabulary, lowercase=wanted.lowercase)
            for left in out.glob(".tokenizer.*.partial"):
                shutil.rmtree(left, ignore_errors=True)  # of a process that was killed
            with whole_folder(folder) as partial:
                for name, content in files.items():
                    (partial / name).write_bytes(content)
    found = {
        name: read_bytes(folder / name, InvalidRequest)
        for name in TOKENIZER_FILES
        if (folder / name).is_file()
    }
    if not found:
        raise InvalidRequest(
            f"tokenizer.folder names {folder}, which holds none of {', '.join(TOKENIZER_FILES)}"
        )
    made = Tokenizer.from_files(found)
    if wanted.train is not None and made.vocabulary_size < wanted.vocabulary:
        say(
            f"the tokenizer has {made.vocabulary_size:,} pieces and not {wanted.vocabulary:,}, since its "
            "text gives no more"
        )
    return made


def check_run(settings: RunSettings, base: Path) -> None:
    """Refuse what can be refused before a tokenizer is trained and text is tokenized.

    Raises:
        InvalidRequest: a file is missing, or the objective or the encoder's config cannot be.
        CheckpointError: the config names what is not built.
    """
    trained_heads(settings.objective)
    for one in (*settings.data.sources, *settings.data.held_out):
        for path in input_files(one, base):
            format_of(path, one)
    model = settings.model
    if model.start_from is not None:
        return
    there = {} if model.architecture is None else published_config(model.architecture)
    limit = longest(check_config(_with_heads(settings, {**there, **_own_config(settings)})))
    if limit is not None and limit < LEAST_TOKENS:
        raise InvalidRequest(
            f"the encoder's config allows texts of at most {limit} tokens, and the shortest have "
            f"{LEAST_TOKENS}; raise the limit (max_position_embeddings in most families)"
        )


def _own_config(settings: RunSettings) -> dict[str, Any]:
    """The run file's keys of config.json; what is said of training alone has no place in what is saved."""
    return {key: value for key, value in settings.model.config.items() if key != "gradient_checkpointing"}


def run_encoder(
    settings: RunSettings, base: Path, tokenizer: Tokenizer, say: Say, *, weights: bool = True
) -> tuple[Checkpoint, Encoder]:
    """What is saved in the end, and the encoder in it with the weights that the run begins with.

    Args:
        settings: of the run.
        base: the folder of the run file.
        tokenizer: see `run_tokenizer`.
        say: hears what of another checkpoint is not taken over.
        weights: False leaves out reading the weights of another checkpoint, where a run is gone on with.

    Raises:
        InvalidRequest: config, tokenizer and checkpoint do not belong together.
        CheckpointError: the checkpoint cannot be used, or the config names what is not built.
    """
    model = settings.model
    own = _own_config(settings)
    begun = None
    if model.start_from is not None:
        begun = read_checkpoint(source(model.start_from, base))
        if begun.unread_config:
            say(f"of {begun.source.folder}'s config.json, {_listed(begun.unread_config)} mean nothing here")
        there = {key: value for key, value in begun.config.items() if key not in begun.unread_config}
        config = _with_heads(settings, {**there, **own})
    else:
        there = {} if model.architecture is None else published_config(model.architecture)
        config = with_tokenizer(_with_heads(settings, {**there, **own}), tokenizer)
    files = tokenizer.files
    if begun is not None and longest(check_config(config)) != longest(begun.spec):
        files = without_length(files)  # that of the texts before
    checkpoint = new_checkpoint(config, files, name=settings.name)
    if begun is not None:
        checkpoint = _with_pooling(checkpoint, begun, say)
    if there:
        _refuse_idle(own, there, config, checkpoint)
    torch.manual_seed(settings.seed)
    encoder = new_encoder(checkpoint, model.initialization, kernel=model.kernel)
    if begun is not None and weights:
        load_matching_weights(encoder, build(begun), str(begun.source.folder), say)
    return checkpoint, encoder


def longest(spec: EncoderSpec) -> int | None:
    """The longest text that an encoder should be trained on; None where its config sets no limit.

    Also where longer ones could be read: what is saved says that it was trained on no longer ones.
    """
    positions = spec.embedding.positions
    rows = None if positions is None else positions.rows - positions.offset
    limits = [spec.max_tokens, spec.trained_tokens, rows]
    return min((limit for limit in limits if limit is not None), default=None)


def _with_pooling(checkpoint: Checkpoint, begun: Checkpoint, say: Say) -> Checkpoint:
    """The checkpoint with the way in which the one that it begins with makes sentence embeddings."""
    if not isinstance(begun.head, PooledVector):
        return checkpoint
    if checkpoint.spec.width != begun.spec.width:
        say(f"the pooling of {begun.source.folder} is left out, since it is made for another width")
        return checkpoint
    say(f"the pooling of {begun.source.folder} ({', '.join(begun.head.pooling)}) is kept")
    limits = [one.max_tokens for one in (checkpoint, begun) if one.max_tokens is not None]
    return replace(
        checkpoint,
        head=begun.head,
        sentence_files=begun.sentence_files,
        max_tokens=min(limits, default=None),
    )


def _with_heads(settings: RunSettings, config: Mapping[str, Any]) -> dict[str, Any]:
    """The config with a class that has the heads of the objective, where the run file names no other."""
    made = with_heads(config, trained_heads(settings.objective))
    own = settings.model.config.get("architectures")
    if own is not None and made["architectures"] != own:
        (name,) = made["architectures"]
        raise InvalidRequest(
            f"model.config's architectures is {own!r}, which lacks heads that the objective trains; "
            f"name {name}, or leave architectures out"
        )
    return made


def _refuse_idle(
    own: Mapping[str, Any], there: Mapping[str, Any], config: Mapping[str, Any], checkpoint: Checkpoint
) -> None:
    """Refuse a key of ``model.config`` that another key of the config it stands on overrules."""
    for key in own.keys() - set(WITHOUT_EFFECT):
        if key in there and there[key] == own[key]:
            continue
        without = {name: value for name, value in config.items() if name != key}
        if key in there:
            without[key] = there[key]
        try:
            other = new_checkpoint(without, checkpoint.tokenizer.files).spec
        except UnmaskError:
            continue  # it cannot be done without
        if other == checkpoint.spec:
            raise InvalidRequest(
                f"model.config's {key} changes nothing of the encoder that it is given for: another key "
                "decides there, or the value is the same; name that key, or leave it out"
            )


def load_matching_weights(encoder: Encoder, other: Encoder, name: str, say: Say) -> None:
    """Give an encoder the weights of another one, called ``name``; ``say`` hears of tensors in one alone.

    Raises:
        InvalidRequest: a tensor has another shape.
    """
    ours, theirs = encoder.state_dict(), other.state_dict()
    for tensor in ours.keys() & theirs.keys():
        if ours[tensor].shape != theirs[tensor].shape:
            raise InvalidRequest(
                f"model.config makes {tensor} of shape {list(ours[tensor].shape)}, and in {name} it has "
                f"{list(theirs[tensor].shape)}; leave sizes as they are there"
            )
    fresh_ones = [tensor for tensor in ours if tensor not in theirs]
    if fresh_ones:
        say(f"{name} has no {_listed(fresh_ones)}; the run begins with fresh weights there")
    left = [tensor for tensor in theirs if tensor not in ours]
    if left:
        say(f"{_listed(left)} of {name} have no place in this run's encoder and are left out")
    encoder.load_state_dict({tensor: theirs.get(tensor, ours[tensor]) for tensor in ours})


def run_objective(settings: RunSettings, base: Path) -> dict[str, Any]:
    """The objective's table, with the path of a teacher from the run file's folder on."""
    table = dict(settings.objective)
    teacher = table.get("teacher")
    if isinstance(teacher, str) and (base / teacher).is_dir():
        table["teacher"] = str((base / teacher).resolve())
    return table


def source(name: str, base: Path) -> Source:
    """A checkpoint that a run file names: a folder as the file sees it, or a hub id.

    Of a run's checkpoint it is the model in it.

    Raises:
        CheckpointNotFound: there is no such folder, or only one as the current folder sees it.
    """
    folder = base / name
    if folder.is_dir():
        inner = folder / "model" if (folder / MANIFEST).is_file() else folder
        return Source(inner, folder.resolve().name)
    if Path(name).is_dir():
        raise CheckpointNotFound(
            f"{folder} is no folder; a path in a run file begins at the file's folder, not at {Path.cwd()}"
        )
    return find(name)


def _listed(names: Mapping[str, Any] | list[str] | tuple[str, ...]) -> str:
    some = list(names)
    return ", ".join(some[:3]) + (f" and {len(some) - 3} more" if len(some) > 3 else "")

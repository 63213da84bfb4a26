"""What a fine-tuning run learns from, as digests by which a resumed or a finished run knows it again.

File names and counts stay the same where a label was mended or a checkpoint was trained again.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from unmask.training.data.labeled import digest_of
from unmask.training.finetune.records import Labeled, read_labeled
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.retrieval.records import Collection, Ranked, read_collection, read_ranked
from unmask.training.retrieval.teacher import read_texts
from unmask.training.run.base_model import first_checkpoint, source
from unmask.weights import read_checkpoint
from unmask.weights.read.checkpoint import fingerprint

DATA = "texts or labels of the data files"
BEGUN = "weights, config or tokenizer of the checkpoint that model.start_from names"
TEACHER = "vectors of the teacher"

UNCHANGED = "the data and the first weights are those that it was trained on"
"""What is said of a finished run, which is refused if it is not so."""

Inputs = dict[str, str]
"""A SHA-256 of each input, by its name in errors."""


def labeled_inputs(
    settings: FinetuneSettings, base: Path, train: Iterable[Labeled], dev: Iterable[Labeled]
) -> Inputs:
    """The inputs of a run on labeled data: its records as they are read, and its first checkpoint."""
    return {DATA: digest_of(chain(_plain(train), ["dev"], _plain(dev))), BEGUN: _begun(settings, base)}


def ranked_inputs(
    settings: FinetuneSettings, base: Path, train: Sequence[Ranked | str], dev: Collection | None
) -> Inputs:
    """The inputs of a retriever's run: records or texts, dev data, its first checkpoint, its teacher."""
    retrieval = settings.retrieval
    assert retrieval is not None
    inputs = {DATA: digest_of(chain(_plain(train), ["dev", dev])), BEGUN: _begun(settings, base)}
    if retrieval.teacher_vectors is not None:
        with (base / retrieval.teacher_vectors).open("rb") as file:
            inputs[TEACHER] = hashlib.file_digest(file, "sha256").hexdigest()
    elif retrieval.teacher is not None:
        inputs[TEACHER] = fingerprint(read_checkpoint(source(retrieval.teacher, base)), ())
    return inputs


def inputs_of(settings: FinetuneSettings, base: Path) -> Inputs:
    """The inputs of a run as its files are now; what a finished run is compared with.

    Raises:
        InvalidRequest: a file does not exist or has no known format.
        InvalidText: a file is damaged.
        CheckpointError: the first checkpoint or the teacher cannot be read.
    """
    data, retrieval = settings.data, settings.retrieval
    if retrieval is None:
        train, dev = (read_labeled(names, data, base) for names in (data.train, data.dev))
        return labeled_inputs(settings, base, train, dev)
    ranked: list[Ranked] | list[str]
    if retrieval.kind == "distillation":
        ranked = read_texts(data.train, data, base)
    else:
        ranked = list(read_ranked(data.train, data, base))
    judged = read_collection(data.dev, data, base, retrieval.dev_documents) if data.dev else None
    return ranked_inputs(settings, base, ranked, judged)


def _begun(settings: FinetuneSettings, base: Path) -> str:
    return fingerprint(first_checkpoint(settings, base), ())


def _plain(records: Iterable[Labeled | Ranked | str]) -> Iterator[object]:
    """Records without their places, which change when a file is renamed."""
    return (record if isinstance(record, str) else replace(record, where="") for record in records)

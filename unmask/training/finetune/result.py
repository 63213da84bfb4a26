"""The result of a fine-tuning run as values and as the file ``result.json``, and digests of its inputs.

By the digests a resumed or a finished run knows its inputs again: file names and counts stay the same where a
label was mended or a checkpoint was trained again.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from unmask.base.files import whole_file
from unmask.base.intervals import Interval
from unmask.training.data.labeled import check_unchanged, digest_of
from unmask.training.finetune.grid import FREE
from unmask.training.finetune.records import Labeled, read_labeled
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.retrieval.records import Collection, Ranked, read_collection, read_ranked, read_texts
from unmask.training.run.base_model import first_checkpoint, source
from unmask.training.run.state import refuse_changes
from unmask.weights import read_checkpoint
from unmask.weights.heads.label_files import LABEL_CONFIG
from unmask.weights.read.fingerprint import fingerprint

DATA = "texts or labels of the data files"
BEGUN = "weights, config or tokenizer of the checkpoint that model.start_from names"
TEACHER = "vectors of the teacher"
OF_LABELS = "weights, config or tokenizer of the model that entities.labels_encoder names"

UNCHANGED = "the data and the first weights are those that it was trained on"
"""What is said of a finished run, which is refused if it is not so."""

Inputs = dict[str, str]
"""A SHA-256 of each input, by its name in errors."""


def labeled_inputs(
    settings: FinetuneSettings, base: Path, train: Iterable[Labeled], dev: Iterable[Labeled]
) -> Inputs:
    """The inputs of a run on labeled data: its records as read, its first checkpoint, its teacher
    or encoder of labels."""
    inputs = {DATA: digest_of(chain(_plain(train), ["dev"], _plain(dev))), BEGUN: _begun(settings, base)}
    if settings.soft_labels is not None:
        inputs[TEACHER] = fingerprint(read_checkpoint(source(settings.soft_labels.teacher, base)), ())
    if settings.entities is not None and settings.entities.labels_encoder is not None:
        inputs[OF_LABELS] = fingerprint(read_checkpoint(source(settings.entities.labels_encoder, base)), ())
    return inputs


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
    """The inputs of a run as its files are now, with which those of a finished run are compared.

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


RESULT = "result.json"
"""The file in a run's folder."""


@dataclass(frozen=True)
class FinetuneResult:
    """A finished run."""

    name: str
    folder: Path
    """The fine-tuned model as a checkpoint folder."""
    steps: int
    """Steps taken; fewer than planned if the run stopped early."""
    best_step: int
    """The step whose weights are exported."""
    dev: Mapping[str, float]
    """Figures of the exported weights on the dev data."""
    adapter: Path | None = None
    """The adapter, if the run trained one; ``folder`` holds the model with that merged into it."""
    encoder: Path | None = None
    """Of few-shot learning, the encoder without its head as a folder that `sentence-transformers` reads."""
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """The 95 % confidence interval of each figure of the task in ``dev``."""
    test: Mapping[str, float] = field(default_factory=dict)
    """Figures on the test file, if one was named and has labels."""
    test_intervals: Mapping[str, Interval] = field(default_factory=dict)
    """The 95 % confidence interval of each."""
    predictions: Path | None = None
    """A file with a line of JSON for each text of the test file; None without one."""


def write_result(
    result: FinetuneResult, settings: FinetuneSettings, out: Path, inputs: Mapping[str, str]
) -> None:
    """Write the result of a finished run into its folder, with the settings and inputs that it belongs to.

    Raises:
        OutputError: the disk is full or read-only.
    """
    write_json(
        out / RESULT,
        {
            "name": result.name,
            "model": result.folder.name,
            "adapter": None if result.adapter is None else result.adapter.name,
            "encoder": None if result.encoder is None else result.encoder.relative_to(out).as_posix(),
            "steps": result.steps,
            "best_step": result.best_step,
            "dev": dict(result.dev),
            "intervals": written_intervals(result.intervals),
            "inputs": dict(inputs),
            "settings": dataclasses.asdict(settings),
        },
    )


def read_result(
    settings: FinetuneSettings, out: Path, inputs: Callable[[], Mapping[str, str]] | None = None
) -> FinetuneResult | None:
    """The result of a run that is finished and whose model is still there; None for any other run.

    Args:
        settings: settings of the run.
        out: its folder.
        inputs: gives the digests of what it would learn from now; None does not compare them.

    Raises:
        InvalidRequest: the run was made with other settings or from other inputs.
    """
    try:
        table = json.loads((out / RESULT).read_bytes())
        adapter = None if table["adapter"] is None else out / table["adapter"]
        encoder = None if table.get("encoder") is None else out / table["encoder"]
        result = FinetuneResult(
            table["name"],
            out / table["model"],
            table["steps"],
            table["best_step"],
            table["dev"],
            adapter,
            encoder,
            read_intervals(table.get("intervals", {})),
        )
        stored, before = table["settings"], table["inputs"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if not any((result.folder / name).is_file() for name in ("config.json", LABEL_CONFIG)):
        return None
    refuse_changes(settings, stored, out, FREE)
    if inputs is not None:
        check_unchanged(before, inputs())
    return result


def written_intervals(intervals: Mapping[str, Interval]) -> dict[str, dict[str, float]]:
    """Intervals as JSON values."""
    return {name: dataclasses.asdict(interval) for name, interval in intervals.items()}


def read_intervals(table: Mapping[str, Mapping[str, float]]) -> dict[str, Interval]:
    """Intervals that `written_intervals` wrote."""
    return {name: Interval(**interval) for name, interval in table.items()}


def write_json(path: Path, table: Mapping[str, Any]) -> None:
    """Write a file of JSON whole.

    Raises:
        OutputError: the disk is full or read-only.
    """
    with whole_file(path) as partial:
        partial.write_text(
            json.dumps(table, indent=1, ensure_ascii=False, default=str) + "\n", "utf-8", newline="\n"
        )

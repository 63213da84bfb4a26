"""The plan of an experiment: what all runs have in common, and the run file of each."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.ablation.variants import Sizes, build_variant
from unmask.base.files import whole_file
from unmask.errors import InvalidRequest
from unmask.families.native import to_config
from unmask.spec.check import require_at_least
from unmask.training.data.sources import SourceSpec, SplitBy
from unmask.training.table import read_table

PLAN = "plan.json"
INPUTS = "inputs.json"
"""SHA-256 of the files that a plan names."""
SPECIAL = 2
"""Special tokens added to every text."""
TEXT = "text"
"""Folder of the training text."""
HALVES: tuple[tuple[str, SplitBy, int], ...] = (("sentences", "sentence", 5), ("paragraphs", "paragraph", 14))
"""Sources of a run: name, unit that a document is split by, tokens below which chunks are merged."""
RESUMABLE = 10
"""Checkpoints per run."""


@dataclass(frozen=True)
class Data:
    """Files; relative paths start at the current folder."""

    text: tuple[str, ...]
    """Training text."""
    held_out: str
    """A file of evaluation text."""
    blimp: str | None = None
    """A folder with BLiMP; None leaves it out."""
    treebank: str | None = None
    """A folder with a treebank for tagging; None leaves it out."""


@dataclass(frozen=True)
class Effort:
    """How much of each thing is measured."""

    windows: int = 600
    """Windows of held-out text, `Sizes.tokens` tokens each."""
    pairs: int = 20
    """Pairs of each BLiMP paradigm."""
    sentences: int = 600
    """Sentences of each split of the treebank."""

    def __post_init__(self) -> None:
        for name in ("windows", "pairs", "sentences"):
            require_at_least(name, getattr(self, name), 1)


@dataclass(frozen=True)
class Training:
    """Training settings that all runs share."""

    tokens: int = 600_000
    """Per run, special tokens included."""
    batch_tokens: int = 512
    """Per step. Small, because so short a run gains more from steps than from large batches."""
    learning_rate: float = 3e-3
    """AdamW's, for embeddings, norms, biases and heads."""
    muon_learning_rate: float = 5e-3
    """Muon's, for the matrices of layers."""
    weight_decay: float = 0.05

    def __post_init__(self) -> None:
        for name in ("tokens", "batch_tokens"):
            require_at_least(name, getattr(self, name), 1)
        if self.tokens < RESUMABLE * self.batch_tokens:
            raise InvalidRequest(
                f"{self.tokens} tokens are {self.tokens // self.batch_tokens} steps of {self.batch_tokens}; "
                f"give at least {RESUMABLE * self.batch_tokens}"
            )

    @property
    def steps(self) -> int:
        """Optimizer steps per run."""
        return self.tokens // self.batch_tokens


@dataclass(frozen=True)
class Plan:
    """An experiment without its variants and seeds, which may be added later."""

    data: Data
    sizes: Sizes = field(default_factory=Sizes)
    training: Training = field(default_factory=Training)
    effort: Effort = field(default_factory=Effort)


def write_plan(plan: Plan, out: Path) -> None:
    """Write the plan into its folder, or check it against the plan that is already there.

    Raises:
        InvalidRequest: the folder holds another experiment.
    """
    path = out / PLAN
    if path.is_file():
        before = read_plan(out)
        if before != plan:
            changed = _changed(asdict(before), asdict(plan))
            raise InvalidRequest(
                f"the experiment in {out} was started with other settings: {', '.join(changed)}; "
                "give those again, or name another folder with --output"
            )
        return
    out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(plan), indent=1) + "\n")


def check_inputs(plan: Plan, out: Path) -> None:
    """Write digests of the plan's files into its folder, and compare those that are there.

    A file that is missing is not compared: training text is not read again once a sample of it was taken.

    Raises:
        InvalidRequest: a file has changed since the experiment was started.
    """
    data = plan.data
    named = [*data.text, data.held_out, *(one for one in (data.blimp, data.treebank) if one is not None)]
    now = {name: _digest(Path(name)) for name in named if Path(name).exists()}
    path = out / INPUTS
    before = json.loads(path.read_text()) if path.is_file() else {}
    if now.keys() - before.keys():
        with whole_file(path) as partial:
            partial.write_text(json.dumps(now | before, indent=1) + "\n")
    changed = [name for name, digest in now.items() if before.get(name, digest) != digest]
    if changed:
        raise InvalidRequest(
            f"{', '.join(changed)} changed since the experiment in {out} was started; restore that, or name "
            "another folder with --output"
        )


def _digest(path: Path) -> str:
    """Of a file, or of all files below a folder with their names."""
    found = hashlib.sha256()
    for each in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if each.is_file():
            with each.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").digest()
            found.update(each.relative_to(path).as_posix().encode() + content)
    return found.hexdigest()


def read_plan(out: Path) -> Plan:
    """The plan of an experiment's folder.

    Raises:
        InvalidRequest: the folder holds no plan, or one that cannot be read.
    """
    path = out / PLAN
    try:
        return read_table(Plan, json.loads(path.read_text()), "")
    except OSError:
        raise InvalidRequest(
            f"{out} holds no experiment; make one with python -m benchmarks.ablation --output {out}"
        ) from None
    except ValueError as error:
        raise InvalidRequest(f"{path} is damaged: {error}; start again in another folder") from None


def _changed(before: Any, now: Any, key: str = "") -> list[str]:
    if isinstance(before, Mapping) and isinstance(now, Mapping):
        below = f"{key}." if key else ""
        return [line for name in now for line in _changed(before.get(name), now[name], f"{below}{name}")]
    return [] if before == now else [f"{key} was {before!r} and is {now!r}"]


def sources(plan: Plan) -> list[SourceSpec]:
    """Half of the tokens as single sentences, half as paragraphs, because minimal pairs are short texts.

    The two files are disjoint halves of a sample of the plan's text, see `benchmarks.ablation.text`, so
    that no text is read in both forms.
    """
    most = plan.sizes.tokens - SPECIAL
    return [
        SourceSpec(name, (f"{TEXT}/{name}.jsonl",), split_by=pieces, max_tokens=most, min_tokens=least)
        for name, pieces, least in HALVES
    ]


def run_table(plan: Plan, variant: str, seed: int) -> dict[str, Any]:
    """The run file of a variant and a seed as a table; it is stored two folders below the experiment's."""
    made, training = build_variant(variant, plan.sizes), plan.training
    return {
        "name": f"{variant}-{seed}",
        "steps": training.steps,
        "seed": seed,
        "device": "cpu",
        "model": {"config": to_config(made.encoder)},
        "tokenizer": {"folder": "../../tokenizer"},
        "data": {
            "cache": "../../data",
            "sources": [_source_table(source) for source in sources(plan)],
        },
        "objective": dict(made.objective),
        "batch": {"tokens": training.batch_tokens, "micro_tokens": training.batch_tokens},
        "optimizer": {
            "kind": "muon",
            "learning_rate": training.learning_rate,
            "muon_learning_rate": training.muon_learning_rate,
            "weight_decay": training.weight_decay,
        },
        "schedule": {"kind": "wsd", "warmup_share": 0.05, "decay_share": 0.4},
        "checkpoints": {"every": max(1, training.steps // RESUMABLE), "minutes": 0, "keep": 1},
    }


def _source_table(source: SourceSpec) -> dict[str, Any]:
    return {
        "name": source.name,
        "files": [f"../../{file}" for file in source.files],
        "split_by": source.split_by,
        "max_tokens": source.max_tokens,
        "min_tokens": source.min_tokens,
    }


def toml(table: Mapping[str, Any]) -> str:
    """A table as TOML: one line per key, nested tables inline. None values are omitted; TOML has no null."""
    return "".join(f"{key} = {_toml(value)}\n" for key, value in table.items() if value is not None)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        inner = (f"{key} = {_toml(one)}" for key, one in value.items() if one is not None)
        return f"{{ {', '.join(inner)} }}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return f"[{', '.join(map(_toml, value))}]"
    # JSON's strings, numbers and booleans are valid TOML too.
    return json.dumps(value)

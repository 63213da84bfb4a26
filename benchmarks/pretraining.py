"""Small pretraining runs of five architectures compared with a unigram and a bigram model, with their curves.

    PYTHONPATH=. python benchmarks/pretraining.py train bert
    PYTHONPATH=. python benchmarks/pretraining.py report --picture docs/pictures/pretraining.png

``train`` makes a run file of ``recipes/`` with smaller sizes and fewer steps, trains it or goes on with it,
and measures it. ``report`` prints a table of all that are done and draws how they got there.

The unigram and the bigram (`benchmarks/baselines.py`) are counted on the very pieces of text that the
run trained on, and asked for the same held-out words; they see true neighbors where the encoder sees masks.
Thresholds of detection are chosen on text of the training, for counts and encoder alike.
"""

import argparse
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.ablation.plan import toml
from benchmarks.baselines import Bigram, Sight, best_threshold, count, f1, foretell, suspicion
from unmask.training.data.stream import Chunk, ChunkStream, held_out
from unmask.training.data.writing import prepare
from unmask.training.objectives.interface import Objective
from unmask.training.objectives.language_modeling import MaskedExample
from unmask.training.objectives.replaced import ReplacedExample, ReplacedTokenDetection
from unmask.training.pretrain import pretrain, read_run
from unmask.training.pretrain.run import Run
from unmask.training.run.callbacks import Callback
from unmask.training.run.loop import EVALUATION_STREAM, generator
from unmask.training.run.ranks import Ranks
from unmask.training.run.settings import RunSettings

ROOT = Path(__file__).parents[1]
HELD_OUT_TOKENS = 60_000
"""That the last figures are taken on."""
THRESHOLD_BATCHES = 40
"""Micro-batches of the training's text that thresholds are chosen on."""

SMALLER: dict[str, Any] = {
    "steps": 1400,
    "precision": "float32",
    "device": "cpu",
    "model": {
        "config": {
            "hidden_size": 96,
            "intermediate_size": 384,
            "num_hidden_layers": 3,
            "num_attention_heads": 3,
        }
    },
    "tokenizer": {"vocabulary": 4096, "sample_bytes": 2_000_000},
    "data": {"cache": "../data"},
    "batch": {"tokens": 1024, "micro_tokens": 1024},
    "schedule": {"kind": "wsd", "warmup_share": 0.03, "decay_share": 0.5},
    "evaluation": {"every": 140, "tokens": 15_000},
    "checkpoints": {"every": 140, "minutes": 0.0, "keep": 1},
    "log": {"every": 20},
}
"""What all have in the place of what the recipe says."""
SHORT = {"max_tokens": 29, "min_tokens": 10}
"""Learned positions of short texts are seen often; with 128 of them 1.4M tokens are not enough to begin."""
MORE = {"rate": 0.3, "final_rate": 0.15}
"""Of tokens are chosen. With 15 % from the start most of these runs stay near the unigram to their end."""
CURVES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "bert": (
        "bert/small.toml",
        {"model": {"config": {"max_position_embeddings": 32}}, "objective": {"masking": MORE}},
        SHORT,
    ),
    "roberta": (
        "roberta/small.toml",
        {"model": {"config": {"max_position_embeddings": 34}}, "objective": MORE},
        SHORT,
    ),
    "electra": (
        "electra/small.toml",
        {
            "model": {"config": {"embedding_size": 96, "max_position_embeddings": 32}},
            "objective": {"masking": MORE},
        },
        SHORT,
    ),
    "deberta-v3": ("deberta-v3/small.toml", {"objective": {"masking": MORE}}, {"max_tokens": 62}),
    "modernbert": (
        "modernbert/small-1.toml",
        {"model": {"config": {"intermediate_size": 256}}, "batch": {"start_tokens": 1024, "ramp_share": 0.0}},
        {},
    ),
}
"""Recipe of each run, what only it has otherwise, and what its pieces of text have."""
COLORS = dict(zip(CURVES, ("#0072B2", "#56B4E9", "#D55E00", "#009E73", "#CC79A7"), strict=True))


def merged(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """The table with values replaced; tables are merged into tables."""
    made = dict(table)
    for key, value in changes.items():
        inner = made.get(key)
        made[key] = merged(inner, value) if isinstance(value, dict) and isinstance(inner, dict) else value
    return made


def write_run(name: str, out: Path) -> Path:
    """The run file of a curve; its path."""
    recipe, changes, pieces = CURVES[name]
    path = ROOT / "recipes" / recipe
    table = merged(merged(tomllib.loads(path.read_text()), SMALLER), changes)
    for source in (*table["data"]["sources"], *table["data"]["held_out"]):
        source.update(pieces)
        source["files"] = [str((path.parent / file).resolve()) for file in source["files"]]
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / "run.toml"
    made.write_text(toml({**table, "name": name, "out": "."}))
    return made


def stream_of(settings: RunSettings, run: Run) -> ChunkStream:
    """The micro-batches of a run from its first one."""
    sets = prepare(
        settings.data.sources,
        run.checkpoint.tokenizer,
        run.base / settings.data.cache,
        run.base,
        verify=False,
    )
    return ChunkStream(
        [(one, source.weight) for one, source in zip(sets, settings.data.sources, strict=True)],
        seed=settings.seed,
        micro_tokens=settings.batch.micro_tokens,
        extra_tokens=run.loop.objective.extra_tokens,
    )


def trained_on(settings: RunSettings, run: Run) -> Iterator[Chunk]:
    """Every piece that the run has trained on, as often as it has."""
    stream = stream_of(settings, run)
    for step in range(settings.steps):
        for pieces in stream.next(settings.batch.micro_batches(step, settings.steps)):
            yield from pieces


def asked(settings: RunSettings, run: Run) -> list[list[Chunk]]:
    """Micro-batches of held-out text."""
    (source,) = prepare(
        settings.data.held_out, run.checkpoint.tokenizer, run.base / settings.data.cache, run.base
    )
    return held_out(
        source,
        micro_tokens=settings.batch.micro_tokens,
        extra_tokens=run.loop.objective.extra_tokens,
        tokens=HELD_OUT_TOKENS,
    )


def examples(
    objective: Objective[Any, Any], batches: Sequence[Sequence[Chunk]], seed: int
) -> list[MaskedExample]:
    """With the masks that the training loop's evaluation gives them."""
    return [
        objective.prepare(pieces, generator(seed, EVALUATION_STREAM, number), 1.0)
        for number, pieces in enumerate(batches)
    ]


def masked_figures(bigram: Bigram, given: Sequence[MaskedExample]) -> dict[str, Any]:
    """What counts say of the masked words."""
    true, places, start = [], [], 0
    for example in given:
        ids_T = example.batch.ids_T.copy()
        ids_T[example.chosen_M] = example.targets_M
        true.append(ids_T)
        places.append(start + example.chosen_M)
        start += len(ids_T)
    found: dict[str, Any] = {"words": sum(map(len, places))}
    for sight in get_args(Sight):
        loss, accuracy = foretell(bigram, np.concatenate(true), np.concatenate(places), sight)
        found[sight] = {"loss": loss, "accuracy": accuracy}
    return found


@dataclass(frozen=True, eq=False)
class Detection:
    """Text in which words are replaced, which ones they are, and how sure the encoder is of each."""

    ids_T: NDArray[np.int64]
    true_T: NDArray[np.bool_]
    logits_T: NDArray[np.float64]


@torch.no_grad()
def detection(objective: ReplacedTokenDetection, given: Sequence[MaskedExample]) -> Detection:
    """Let the generator replace words and the discriminator look for them."""
    ids, true, logits = [], [], []
    for number, example in enumerate(given):
        assert isinstance(example, ReplacedExample)
        torch.manual_seed(number)
        words_M = objective.propose(example)[2].numpy()
        ids_T, true_T = example.batch.ids_T.copy(), np.zeros(example.tokens, dtype=np.bool_)
        ids_T[example.chosen_M] = words_M
        true_T[example.chosen_M] = words_M != example.targets_M
        encoder, layout = objective.discriminator, example.batch.layout
        x_TD = encoder(torch.from_numpy(ids_T), layout, torch.from_numpy(example.batch.token_type_ids_T))
        ids.append(ids_T)
        true.append(true_T)
        logits.append(encoder.logits("replaced", x_TD, layout).squeeze(-1).double().numpy())
    return Detection(np.concatenate(ids), np.concatenate(true), np.concatenate(logits))


def detection_figures(bigram: Bigram, train: Detection, held: Detection) -> dict[str, Any]:
    """F1 of the encoder and of counts, with thresholds chosen on text of the training."""
    found: dict[str, Any] = {
        "replaced": float(held.true_T.mean()),
        "everything": f1(np.ones_like(held.true_T), held.true_T),
        "encoder_above_0": f1(held.logits_T > 0, held.true_T),
        "encoder": f1(held.logits_T >= best_threshold(train.logits_T, train.true_T), held.true_T),
    }
    for sight in get_args(Sight):
        threshold = best_threshold(suspicion(bigram, train.ids_T, sight), train.true_T)
        found[sight] = f1(suspicion(bigram, held.ids_T, sight) >= threshold, held.true_T)
    return found


def measure(path: Path) -> dict[str, Any]:
    """Figures of a finished run compared with those of the count baselines."""
    settings = read_run(path)
    run = Run(settings, path.parent, path.parent, Ranks(), Callback())
    objective, vocabulary = run.loop.objective.eval(), run.loop.objective.vocabulary
    pieces = list(trained_on(settings, run))
    bigram = count((piece.ids for piece in pieces), vocabulary)
    batches = asked(settings, run)
    given = examples(objective, batches, settings.seed)
    found = {
        "parameters": sum(parameter.numel() for parameter in objective.parameters()),
        "vocabulary": vocabulary.size,
        "tokens": run.loop.tokens,
        "words_counted": sum(len(piece.ids) for piece in pieces),
        "held_out": run.loop.evaluate(batches),
        "masked": masked_figures(bigram, given),
    }
    if isinstance(objective, ReplacedTokenDetection):
        some = stream_of(settings, run).next(THRESHOLD_BATCHES)
        train = detection(objective, examples(objective, some, settings.seed + 1))
        found["detection"] = detection_figures(bigram, train, detection(objective, given))
    return found


def train(name: str, out: Path) -> None:
    """Train or go on, measure, and keep the figures."""
    path = write_run(name, out)
    pretrain(path, callback=Callback())
    (out / name / "figures.json").write_text(json.dumps(measure(path), indent=1) + "\n")


def table(found: dict[str, dict[str, Any]]) -> str:
    """Markdown."""
    lines = [
        "| | parameters | words asked | loss | unigram | bigram, left | bigram, both | "
        "accuracy | bigram, left | bigram, both |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        counts, held = one["masked"], one["held_out"]
        losses = (held["masked/loss"], *(counts[sight]["loss"] for sight in get_args(Sight)))
        shares = (held["masked/accuracy"], *(counts[sight]["accuracy"] for sight in ("left", "both")))
        cells = [f"{one['parameters']:,}", f"{counts['words']:,}", *(f"{loss:.3f}" for loss in losses)]
        lines.append(" | ".join([f"| {name}", *cells, *(f"{share:.1%}" for share in shares)]) + " |")
    lines += [
        "",
        "| F1 of detection | replaced | encoder | above 0 | unigram | bigram, left | bigram, both | all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        if "detection" in one:
            keys = ("encoder", "encoder_above_0", *get_args(Sight), "everything")
            cells = [f"{one['detection']['replaced']:.1%}", *(f"{one['detection'][key]:.3f}" for key in keys)]
            lines.append(" | ".join([f"| {name}", *cells]) + " |")
    return "\n".join(lines)


def curve(out: Path, name: str, kind: str) -> list[dict[str, Any]]:
    """Lines of a run's log."""
    events = map(json.loads, (out / name / "log.jsonl").read_text().splitlines())
    return [event for event in events if event["event"] == kind]


def draw(found: dict[str, dict[str, Any]], out: Path, path: Path) -> None:
    """Losses of masked words, and F1 where there is any, by tokens seen."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    losses, detections = figure.subplots(1, 2)
    for name, one in found.items():
        color, points = COLORS[name], curve(out, name, "held_out")
        tokens = [point["tokens"] / 1e6 for point in points]
        trained = curve(out, name, "step")
        losses.plot(
            [point["tokens"] / 1e6 for point in trained],
            [point["masked/loss"] for point in trained],
            color=color,
            alpha=0.3,
            linewidth=0.8,
        )
        losses.plot(tokens, [point["masked/loss"] for point in points], "o-", color=color, ms=3, label=name)
        losses.axhline(one["masked"]["none"]["loss"], color=color, linestyle=":", linewidth=0.8)
        losses.axhline(one["masked"]["left"]["loss"], color=color, linestyle="--", linewidth=0.8)
        if "detection" in one:
            values = [
                2 * point["replaced/found"] / (point["replaced/said"] + point["replaced/true"])
                for point in points
            ]
            detections.plot(tokens, values, "o-", color=color, ms=3, label=name)
            detections.axhline(one["detection"]["none"], color=color, linestyle=":", linewidth=0.8)
            detections.axhline(one["detection"]["left"], color=color, linestyle="--", linewidth=0.8)
    for axis, label in (
        (losses, "loss of masked words, nats"),
        (detections, "F1 of replaced words, logit > 0"),
    ):
        axis.set_xlabel("million tokens of training")
        axis.set_ylabel(label)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=8)
    figure.suptitle(
        "Held-out text; pale: training. Dotted: unigram, dashed: bigram of the left neighbor, same text.",
        fontsize=9,
    )
    figure.savefig(path, dpi=160)


def report(out: Path, picture: Path | None) -> None:
    """Table and picture of every run that is measured."""
    found = {
        name: json.loads((out / name / "figures.json").read_text())
        for name in CURVES
        if (out / name / "figures.json").is_file()
    }
    print(table(found))
    if picture is not None:
        draw(found, out, picture)


def main() -> None:
    """Of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("train", "report"))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CURVES))
    parser.add_argument("--out", type=Path, default=Path("runs/curves"))
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in CURVES]
    if unknown:
        parser.error(f"there is no run {unknown[0]}; there are {', '.join(CURVES)}")
    if given.command == "report":
        report(given.out, given.picture)
        return
    for name in given.names or CURVES:
        train(name, given.out)


if __name__ == "__main__":
    main()

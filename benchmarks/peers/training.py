"""Training steps compared with `transformers` and its `Trainer`: the same weights, texts and precision.

Texts have many lengths, with ``sequences`` per step. `unmask` packs them; Trainer pads a batch to its longest
text. Both run forward and backward, clip gradients and update every weight. Models with an MLM head predict
masked tokens; all others get a new head and classify texts. A round trains on every text once; rounds of the
two alternate.
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.peers.our_training import (
    BETAS,
    CLIP,
    DECAY,
    EPS,
    LEARNING_RATE,
    MASKED,
    OurRun,
    TrainingPrecision,
    write_classifier,
)
from benchmarks.peers.trainer import NOT_PREDICTED, TrainerRun, unavailable
from benchmarks.peers.workloads import mixed_lengths, of_lengths
from unmask.base.progress import Progress
from unmask.bench.benchmark_model import (
    BenchmarkModel,
    ModelInfo,
    described,
    invented_lines,
    lines_of,
    shortened,
    write_random,
)
from unmask.bench.machine import LeftOut, Machine, this_machine
from unmask.bench.timing import Seconds, Spread, ratio
from unmask.cli.measure.options import SubjectOptions
from unmask.errors import InvalidRequest, MissingExtra
from unmask.families import Family, find_architecture
from unmask.spec import EncoderSpec, MaskedLM
from unmask.text import Tokenizer
from unmask.text.tokenizer import TOKENIZER_FILES
from unmask.training.objectives.labeled import LabeledExample
from unmask.training.objectives.language_modeling import MaskedExample
from unmask.weights import Source, read_checkpoint
from unmask.weights.write.new_checkpoint import new_checkpoint, new_encoder, with_tokenizer
from unmask.weights.write.save import save

Key = tuple[str, str]
"""What trains, and its precision."""

LOSS_APART = 1e-3
"""If losses on one masked batch in float32 differ by a larger fraction, the models differ."""


@dataclass(frozen=True)
class TrainingRow:
    """One engine in one precision."""

    engine: str
    precision: str
    rounds: int
    seconds_per_step: Spread
    tokens_per_second: float
    """In the median round; padding is not counted."""
    padding: float
    """Fraction of the encoder's input that is padding."""
    to_trainer: Spread | None
    """Speed relative to Trainer in the same precision, compared within each round."""
    to_grouped: Spread | None
    """Speed relative to Trainer with texts of similar length grouped in batches."""


@dataclass(frozen=True)
class TrainingReport:
    """The result of `measure_training`."""

    protocol: str = field(default="training", init=False)
    measured: ModelInfo
    machine: Machine
    texts: str
    lengths: Mapping[str, float]
    """Tokens per text: the mean, and percentiles by names such as ``p50``."""
    objective: Literal["masked tokens", "classes of texts"]
    """What is predicted."""
    sequences: int
    """Texts per step."""
    steps: int
    """Steps per round."""
    loss_ours: float
    """Losses on one batch before training, in float32 without dropout."""
    loss_theirs: float
    rows: tuple[TrainingRow, ...]
    left_out: tuple[LeftOut, ...]
    seed: int


@contextmanager
def model_to_train(subject: SubjectOptions, seed: int, tokenizer: Path | None) -> Iterator[BenchmarkModel]:
    """The model that the options name; an architecture has random weights and its pretraining heads.

    Args:
        subject: the options.
        seed: seed of the random weights.
        tokenizer: folder of a tokenizer for an architecture; None invents a vocabulary.

    Raises:
        InvalidRequest: there is no such model or architecture, or a model is given another tokenizer.
    """
    if subject.architecture is None or subject.model is not None:
        if tokenizer is not None:
            raise InvalidRequest("--tokenizer is for an --architecture; a --model has its own")
        with subject.chosen(seed) as chosen:
            yield chosen
        return
    family, published = find_architecture(subject.architecture)
    spec = shortened(published.pretraining or published.spec, subject.layers)
    with tempfile.TemporaryDirectory(prefix="unmask-bench-") as place:
        folder = Path(place) / published.name.rpartition("/")[2]
        if tokenizer is None:
            write_random(folder, family, spec, seed)
        else:
            _write_fresh(folder, family, spec, tokenizer, seed)
        yield described(folder, published.name, None, random_weights=True)


def _write_fresh(folder: Path, family: Family, spec: EncoderSpec, tokenizer: Path, seed: int) -> None:
    files = {
        name: (tokenizer / name).read_bytes() for name in TOKENIZER_FILES if (tokenizer / name).is_file()
    }
    if not files:
        raise InvalidRequest(f"there is no tokenizer in {tokenizer}")
    loaded = Tokenizer.from_files(files)
    checkpoint = new_checkpoint(with_tokenizer(dict(family.write(spec)), loaded), loaded.files)
    save(new_encoder(checkpoint, seed=seed), checkpoint, folder)


def measure_training(
    subject: BenchmarkModel,
    *,
    precisions: Sequence[TrainingPrecision] = ("float32", "autocast"),
    texts: Path | None = None,
    sequences: int = 8,
    steps: int = 16,
    longest: int = 512,
    compiled: bool = False,
    rounds: int = 3,
    seed: int = 0,
    budget_seconds: float | None = None,
    progress: Progress | None = None,
) -> TrainingReport:
    """Time every precision of `unmask`, Trainer, and Trainer with texts grouped by length, in alternation.

    Args:
        subject: the model; without an MLM head it is trained as a classifier with a new head.
        precisions: precisions of the training step.
        texts: a file with one text per line, from which texts are drawn; None invents texts.
        sequences: texts per step.
        steps: steps per round.
        longest: maximum tokens per text; longer texts are truncated.
        compiled: whether `unmask` compiles its layers; Trainer uses its defaults.
        rounds: number of timed rounds, after one that is not timed.
        seed: seed of texts, order and masks.
        budget_seconds: time budget; no new round starts after it.
        progress: called with (rounds done, rounds in total).

    Raises:
        MissingExtra: `transformers` or `accelerate` is not installed.
        InvalidRequest: a number is below 1, the family has no classifier, or the losses of the two differ.
    """
    _check(sequences=sequences, steps=steps, rounds=rounds)
    checkpoint = read_checkpoint(Source(subject.folder, "", None))
    tokenizer = checkpoint.tokenizer
    masked = any(isinstance(head, MaskedLM) for head in checkpoint.spec.heads)
    limit = subject.record.max_tokens
    longest = longest if limit is None else min(longest, limit)
    ids, source = _ids(tokenizer, texts, sequences * steps, longest, seed)
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unmask-bench-")))
        folder = subject.folder if masked else work / "classifier"
        if not masked:
            write_classifier(subject.folder, folder, seed)
        engines: dict[Key, Callable[[], float]] = {}
        trainers: dict[Key, TrainerRun] = {}
        for precision in precisions:
            ours = OurRun(folder, tokenizer, ids, sequences, precision, compiled=compiled, seed=seed)
            engines["unmask compiled" if compiled else "unmask", precision] = ours.round
            trainers |= _trainers(
                folder, work, ids, tokenizer, precision, masked=masked, sequences=sequences, seed=seed
            )
            engines |= {key: run.round for key, run in trainers.items() if key[1] == precision}
        losses = _losses(folder, work, tokenizer, ids[:sequences], seed, masked=masked)
        times = _in_turn(engines, rounds, budget_seconds, progress)
        lengths = np.array([len(one) for one in ids])
        cells = {key: run.cells / (1 + len(times[" ".join(key)])) for key, run in trainers.items()}
        rows = tuple(_row(key, times, steps, int(lengths.sum()), cells) for key in engines)
    why = LeftOut("trainer", "bfloat16", "it keeps its weights in float32")
    return TrainingReport(
        measured=subject.record,
        machine=this_machine(torch.device("cpu")),
        texts=f"{len(ids):,} texts, {lengths.sum():,} tokens, from {source}",
        lengths={"mean": float(lengths.mean())}
        | {f"p{p}": float(np.percentile(lengths, p)) for p in (10, 50, 90, 100)},
        objective="masked tokens" if masked else "classes of texts",
        sequences=sequences,
        steps=steps,
        loss_ours=losses[0],
        loss_theirs=losses[1],
        rows=rows,
        left_out=(why,) if "bfloat16" in precisions else (),
        seed=seed,
    )


def _check(**numbers: int) -> None:
    reason = unavailable()
    if reason is not None:
        raise MissingExtra(f"there is nothing to compare with: {reason}")
    for name, number in numbers.items():
        if number < 1:
            raise InvalidRequest(f"{name} is {number}; it must be at least 1")


def _ids(
    tokenizer: Tokenizer, texts: Path | None, count: int, longest: int, seed: int
) -> tuple[list[NDArray[np.int64]], str]:
    if texts is None:
        made = of_lengths(
            tokenizer,
            mixed_lengths(count, longest, seed),
            invented_lines(tokenizer, seed),
            "words of the vocabulary",
        )
        chosen, source = list(made.texts), made.source
    else:
        lines = lines_of(texts)
        if len(lines) < count:
            raise InvalidRequest(
                f"{texts} holds {len(lines)} texts and {count} are needed; lower --sequences or --steps"
            )
        order = np.random.default_rng(seed).choice(len(lines), count, replace=False)
        chosen, source = [lines[number] for number in order], texts.name
    encodings = tokenizer.encode_batch(chosen, max_tokens=longest, truncation="end")
    return [np.asarray(one.ids, dtype=np.int64) for one in encodings], source


def _trainers(
    folder: Path,
    work: Path,
    ids: Sequence[NDArray[np.int64]],
    tokenizer: Tokenizer,
    precision: TrainingPrecision,
    *,
    masked: bool,
    sequences: int,
    seed: int,
) -> dict[Key, TrainerRun]:
    """Trainer with texts in random order and grouped by length; none in bfloat16, which it lacks."""
    if precision == "bfloat16":
        return {}
    return {
        (name, precision): _trainer(
            folder,
            work,
            ids,
            tokenizer,
            masked=masked,
            sequences=sequences,
            precision=precision,
            grouped=grouped,
            seed=seed,
        )
        for name, grouped in (("trainer", False), ("trainer grouped", True))
    }


def _trainer(
    folder: Path,
    work: Path,
    ids: Sequence[NDArray[np.int64]],
    tokenizer: Tokenizer,
    *,
    masked: bool,
    sequences: int,
    precision: str,
    grouped: bool,
    seed: int,
) -> TrainerRun:
    optimizer: dict[str, Any] = {
        "learning_rate": LEARNING_RATE,
        "weight_decay": DECAY,
        "adam_beta1": BETAS[0],
        "adam_beta2": BETAS[1],
        "adam_epsilon": EPS,
        "max_grad_norm": CLIP,
    }
    return TrainerRun(
        folder,
        work,
        ids,
        sequences=sequences,
        autocast=precision == "autocast",
        grouped=grouped,
        roles=tokenizer.special_tokens,
        masked=MASKED if masked else None,
        optimizer=optimizer,
        seed=seed,
    )


def _losses(
    folder: Path,
    work: Path,
    tokenizer: Tokenizer,
    ids: Sequence[NDArray[np.int64]],
    seed: int,
    *,
    masked: bool,
) -> tuple[float, float]:
    """Losses of `unmask` and `transformers` on one batch; an error if they are not the same model."""
    ours = OurRun(folder, tokenizer, ids, len(ids), "float32", seed=seed)
    theirs = _trainer(
        folder,
        work,
        ids,
        tokenizer,
        masked=masked,
        sequences=len(ids),
        precision="float32",
        grouped=False,
        seed=seed,
    )
    example = ours.example(range(len(ids)))
    layout = example.batch.layout
    rows = [layout.rows(number) for number in range(layout.sequence_count)]
    if isinstance(example, MaskedExample):
        targets_T = np.full(example.tokens, NOT_PREDICTED)
        targets_T[example.chosen_M] = example.targets_M
        targets = [targets_T[row] for row in rows]
    else:
        assert isinstance(example, LabeledExample)
        targets = list(example.targets_P)
    their_loss = theirs.loss([example.batch.ids_T[row] for row in rows], targets)
    ours.objective.eval()
    with torch.no_grad():
        our_loss = float(ours.objective(example, example.counts).loss)
    if not abs(our_loss - their_loss) <= LOSS_APART * abs(their_loss):
        raise InvalidRequest(
            f"the loss of one batch is {our_loss:.6f} here and {their_loss:.6f} in transformers; "
            "they are not the same model, so their times are not compared"
        )
    return our_loss, their_loss


def _in_turn(
    engines: Mapping[tuple[str, str], Callable[[], float]],
    rounds: int,
    budget_seconds: float | None,
    progress: Progress | None,
) -> Seconds:
    """The seconds of each engine in each round; engines alternate, and the first round is not kept."""
    times: dict[str, list[float]] = {" ".join(key): [] for key in engines}
    spent, done, total = 0.0, 0, (1 + rounds) * len(engines)
    for number in range(1 + rounds):
        if number > 1 and budget_seconds is not None and spent >= budget_seconds:
            break
        for key, run in engines.items():
            seconds = run()
            if number:
                times[" ".join(key)].append(seconds)
                spent += seconds
            done += 1
            if progress is not None:
                progress(done, total)
    return {name: tuple(each) for name, each in times.items()}


def _row(
    key: tuple[str, str],
    times: Seconds,
    steps: int,
    tokens: int,
    cells: Mapping[tuple[str, str], float],
) -> TrainingRow:
    engine, precision = key
    name = " ".join(key)
    spread = Spread.of(times[name])
    ours = engine.startswith("unmask")
    to = {
        which: ratio(times, f"{which} {precision}", name)
        if ours and f"{which} {precision}" in times
        else None
        for which in ("trainer", "trainer grouped")
    }
    return TrainingRow(
        engine=engine,
        precision=precision,
        rounds=len(times[name]),
        seconds_per_step=Spread(*(value / steps for value in (spread.median, spread.lowest, spread.highest))),
        tokens_per_second=tokens / spread.median,
        padding=1 - tokens / cells[key] if key in cells else 0.0,
        to_trainer=to["trainer"],
        to_grouped=to["trainer grouped"],
    )

"""Steps of all designs in turn, so that whatever slows the machine slows each of them alike."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.files import whole_file
from unmask.learn.data import Stream
from unmask.learn.objectives.build import build_objective
from unmask.learn.objectives.interface import Objective, Piece
from unmask.learn.optim import OptimiserSpec, build_optimiser, clip_gradients
from unmask.learn.table import read_table
from unmask.learn.vocabulary import Vocabulary
from unmask.measure.evolve.plan import SPECIAL, Plan, run_table
from unmask.measure.evolve.text import read_text
from unmask.model.weights.fresh import fitted, fresh, new_encoder
from unmask.tasks.progress import Progress
from unmask.text import Tokenizer

SPEED = "speed.json"
WARM_UP = 2
"""Rounds that do not count."""


@dataclass(frozen=True)
class Speed:
    """How fast a design trains, in tokens a second of processor time of all threads together.

    Processor time is time in which the process ran: on a machine with nothing else to do, and one thread, the
    same as time by the clock; on a busy one what the clock would have shown without the others, but for what
    they took of caches and memory.
    """

    design: str
    tokens_per_second: float
    """Tokens by the median step."""
    lowest: float
    """By the first quartile of steps."""
    highest: float
    """By the third."""
    steps: int


@dataclass(frozen=True)
class Speeds:
    """Of one process."""

    threads: int
    designs: tuple[Speed, ...]


def measure_speed(
    plan: Plan, out: Path, designs: Sequence[str], *, rounds: int = 30, progress: Progress | None = None
) -> Speeds:
    """Training steps of fresh encoders on the same text, a step of each design in turn.

    A step is masking, forward and backward pass, clipping and the optimiser's step.
    """
    tokenizer, sets = read_text(plan, out)
    stream = Stream(
        [(one, 1.0) for one in sets], seed=0, micro_tokens=plan.training.batch_tokens, extra_tokens=2
    )
    batches = stream.next(rounds + WARM_UP)
    steps = {name: _stepper(plan, name, tokenizer) for name in designs}
    seconds: dict[str, list[float]] = {name: [] for name in designs}
    tokens = [sum(len(piece.ids) + SPECIAL for piece in pieces) for pieces in batches]
    for number, pieces in enumerate(batches):
        # Another one goes first each time, so that none always follows the same.
        turn = number % len(designs)
        for name in (*designs[turn:], *designs[:turn]):
            start = time.process_time()
            steps[name](pieces, number)
            seconds[name].append((time.process_time() - start) / tokens[number])
        if progress is not None:
            progress(number + 1, len(batches))
    made = tuple(_speed(name, seconds[name][WARM_UP:]) for name in designs)
    return Speeds(torch.get_num_threads(), made)


def write_speeds(speeds: Speeds, out: Path) -> None:
    """Into the experiment's folder."""
    with whole_file(out / SPEED) as partial:
        partial.write_text(json.dumps(asdict(speeds), indent=1) + "\n")


def read_speeds(out: Path) -> Speeds | None:
    """From the experiment's folder; None where they were not measured."""
    path = out / SPEED
    return read_table(Speeds, json.loads(path.read_text()), str(path)) if path.is_file() else None


def _speed(name: str, seconds_per_token: Sequence[float]) -> Speed:
    low, middle, high = np.quantile(seconds_per_token, [0.25, 0.5, 0.75])
    return Speed(name, float(1 / middle), float(1 / high), float(1 / low), len(seconds_per_token))


def _stepper(plan: Plan, design: str, tokenizer: Tokenizer) -> Callable[[Sequence[Piece], int], None]:
    """A function that takes one step of a fresh encoder of the design."""
    table = run_table(plan, design, seed=0)
    checkpoint = fresh(fitted(table["model"]["config"], tokenizer), tokenizer.files, name=design)
    encoder = new_encoder(checkpoint, seed=0)
    objective: Objective[Any] = build_objective(table["objective"], encoder, Vocabulary.of(tokenizer))
    spec = read_table(OptimiserSpec, table["optimiser"], "optimiser")
    optimiser = build_optimiser(objective.train(), spec)

    def step(pieces: Sequence[Piece], number: int) -> None:
        example = objective.prepare(pieces, np.random.default_rng(number), 0.0)
        objective(example, example.counts).loss.backward()
        clip_gradients(objective.parameters(), spec.clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step

"""The runs of an experiment one after another; those that are finished are not done again."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from unmask.errors import InvalidRequest, UnmaskError
from unmask.measure.ablation.figures import FIGURES, Figures, read_figures
from unmask.measure.ablation.one import folder_of
from unmask.measure.ablation.plan import Plan, write_plan
from unmask.measure.ablation.statistics import MOST_SEEDS
from unmask.measure.ablation.text import prepare_text
from unmask.measure.ablation.variants import VARIANTS, by_name

Say = Callable[[str], None]


def run_ablation(
    plan: Plan, out: Path, variants: Sequence[str] | None = None, seeds: int = 3, say: Say | None = None
) -> list[Figures]:
    """Train and measure designs, seed by seed: all with the first seed, then all with the second.

    What a stopped call has finished counts, and the run that it was in is gone on with at its checkpoint.

    Args:
        plan: what runs have in common; that of an experiment already in ``out`` must be the same.
        out: folder of the experiment.
        designs: names; None for all.
        seeds: runs of each design. A seed decides weights, masks and the order of the text; masks and order
            are the same for every design that masks alike.
        say: told about every run.

    Raises:
        InvalidRequest: no such design, ``seeds`` out of range, or another plan in that folder.
        UnmaskError: what a run ended with.
    """
    names = [one.name for one in VARIANTS] if variants is None else list(dict.fromkeys(variants))
    for name in names:
        by_name(name)
    if not 1 <= seeds <= MOST_SEEDS:
        raise InvalidRequest(f"seeds is {seeds}; it can be 1 to {MOST_SEEDS}")
    say = say or (lambda _: None)
    _check_data(plan)
    write_plan(plan, out)
    prepare_text(plan, out, say)
    every = [(seed, name) for seed in range(1, seeds + 1) for name in names]
    made = []
    for number, (seed, name) in enumerate(every, start=1):
        path = folder_of(out, name, seed) / FIGURES
        found = read_figures(path)
        if found is None:
            say(f"{number} of {len(every)}: {name}, seed {seed}")
            found = in_own_process(out, name, seed)
        made.append(found)
    return made


def _check_data(plan: Plan) -> None:
    """Refuse now what could not be measured after training."""
    data = plan.data
    for path, is_there in (
        (data.held_out, Path.is_file),
        *((folder, Path.is_dir) for folder in (data.blimp, data.treebank) if folder is not None),
    ):
        if not is_there(Path(path)):
            raise InvalidRequest(f"{path} is not there; name where held-out text and probes are (--data)")


def in_own_process(out: Path, variant: str, seed: int) -> Figures:
    """Train and measure a run in a process of its own."""
    command = [sys.executable, "-m", "unmask.measure.ablation.one", str(out), variant, str(seed)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    found = read_figures(folder_of(out, variant, seed) / FIGURES)
    if done.returncode or found is None:
        last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
        raise UnmaskError(f"the run of {variant} with seed {seed} ended: {last}")
    return found

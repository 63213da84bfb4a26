"""The runs of an experiment, one after another; finished runs are skipped."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.ablation.figures import FIGURES, Figures, read_figures
from benchmarks.ablation.one import folder_of
from benchmarks.ablation.plan import Plan, check_inputs, write_plan
from benchmarks.ablation.statistics import MOST_SEEDS
from benchmarks.ablation.text import prepare_text
from benchmarks.ablation.variants import VARIANTS, by_name
from unmask.errors import InvalidRequest, UnmaskError

Say = Callable[[str], None]


def run_ablation(
    plan: Plan, out: Path, variants: Sequence[str] | None = None, seeds: int = 3, say: Say | None = None
) -> list[Figures]:
    """Train and measure variants, seed by seed: all with the first seed, then all with the second.

    Runs finished by an interrupted call are kept, and the interrupted run resumes from its checkpoint.

    Args:
        plan: what the runs have in common; the plan of an experiment already in ``out`` must be the same.
        out: folder of the experiment.
        variants: names; None for all.
        seeds: runs of each variant. A seed determines weights, masks and the order of the text; masks and
            order
        are the same for all variants with the same masking.
        say: called with a sentence about every run.

    Raises:
        InvalidRequest: no such variant, ``seeds`` out of range, or the folder is of another plan or of files
            that have changed.
        UnmaskError: a run failed.
    """
    names = [one.name for one in VARIANTS] if variants is None else list(dict.fromkeys(variants))
    for name in names:
        by_name(name)
    if not 1 <= seeds <= MOST_SEEDS:
        raise InvalidRequest(f"seeds is {seeds}; it must be from 1 to {MOST_SEEDS}")
    say = say or (lambda _: None)
    _check_data(plan)
    write_plan(plan, out)
    check_inputs(plan, out)
    prepare_text(plan, out, say)
    every = [(seed, name) for seed in range(1, seeds + 1) for name in names]
    made = []
    for number, (seed, name) in enumerate(every, start=1):
        path = folder_of(out, name, seed) / FIGURES
        found = read_figures(path)
        if found is not None:
            say(f"{number} of {len(every)}: {name} is already finished, with this plan and these files")
        else:
            say(f"{number} of {len(every)}: {name}, seed {seed}")
            found = in_own_process(out, name, seed)
        made.append(found)
    return made


def _check_data(plan: Plan) -> None:
    """Refuse before training what could not be measured after it."""
    data = plan.data
    for path, is_there in (
        (data.held_out, Path.is_file),
        *((folder, Path.is_dir) for folder in (data.blimp, data.treebank) if folder is not None),
    ):
        if not is_there(Path(path)):
            raise InvalidRequest(
                f"{path} does not exist; name the folder with held-out text and probes (--data)"
            )


def in_own_process(out: Path, variant: str, seed: int) -> Figures:
    """Train and measure a run in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.ablation.one", str(out), variant, str(seed)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    found = read_figures(folder_of(out, variant, seed) / FIGURES)
    if done.returncode or found is None:
        last = (done.stderr.strip().splitlines() or [f"it exited with code {done.returncode}"])[-1]
        raise UnmaskError(f"the run of {variant} with seed {seed} failed: {last}")
    return found

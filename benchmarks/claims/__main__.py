"""Train what is missing: ``python -m benchmarks.claims --data ../shared/data``.

Every run is a folder with ``result.json``. Finished runs are skipped, and an interrupted run on text resumes
from its checkpoint. All variants of a claim are trained with the first seed, then with the second, and so on.
"""

import time
from argparse import ArgumentParser
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.claims.experiments import CLAIMS, EXPERIMENTS
from benchmarks.claims.results import RESULTS, UNTRAINED, Result, path_of, read_result, write_result
from unmask.errors import InvalidRequest, UnmaskError

LEAST_TOKENS = 20_000
"""Ten steps of the larger batch."""


@dataclass(frozen=True)
class Folders:
    """Where results are written, data are read, and texts and checkpoints are kept between runs."""

    results: Path
    data: Path
    work: Path


def finish(experiment: str, variant: str, seed: int, tokens: int, *, folders: Folders) -> bool:
    """Train and measure a run, unless it is done; returns whether it was done now.

    Raises:
        InvalidRequest: it was done with another number of tokens.
    """
    name = variant if tokens else f"{variant}{UNTRAINED}"
    path = path_of(folders.results, experiment, name, seed)
    found = read_result(path)
    if found is not None and found.tokens != tokens:
        raise InvalidRequest(
            f"{path} is the result of {found.tokens:,} tokens, not of {tokens:,}; give --tokens "
            f"{found.tokens}, or another folder with --results"
        )
    if found is None:
        train = EXPERIMENTS[experiment].train
        seconds, figures = train(variant, seed, tokens, folders.data, folders.work)
        rounded = {key: round(value, 6) for key, value in figures.items()}
        write_result(Result(experiment, name, seed, tokens, round(seconds, 1), rounded), path)
    return found is None


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    parser = ArgumentParser(prog="python -m benchmarks.claims", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=[one.name for one in CLAIMS], metavar="CLAIM")
    every = sorted({variant for claim in CLAIMS for variant in claim.variants})
    parser.add_argument("--variants", nargs="+", choices=every, metavar="VARIANT")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tokens", type=int, help="of each run, instead of the experiment's own number")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--work", type=Path, default=Path("runs/claims"), help="texts and checkpoints")
    given = parser.parse_args(arguments)
    if given.seeds < 1:
        parser.error(f"--seeds is {given.seeds}; give at least 1")
    if given.tokens is not None and given.tokens < LEAST_TOKENS:
        parser.error(f"--tokens is {given.tokens}; give at least {LEAST_TOKENS:,}")
    folders = Folders(given.results, given.data, given.work)
    torch.set_num_threads(1)
    for claim in CLAIMS:
        if given.only and claim.name not in given.only:
            continue
        tokens = given.tokens or EXPERIMENTS[claim.experiment].tokens
        for seed in range(1, given.seeds + 1):
            for variant, budget in [*((one, tokens) for one in claim.variants), (claim.variants[0], 0)]:
                if given.variants and variant not in given.variants:
                    continue
                start = time.perf_counter()
                try:
                    done = finish(claim.experiment, variant, seed, budget, folders=folders)
                except UnmaskError as error:
                    parser.exit(1, f"{error}\n")
                if done:
                    seconds = time.perf_counter() - start
                    print(
                        f"{claim.name}: {variant}, seed {seed}, {budget:,} tokens: {seconds:.0f} s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()

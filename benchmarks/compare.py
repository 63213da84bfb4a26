"""Whether a commit is slower than another one: ``python -m benchmarks.compare BASE [HEAD]``.

Both commits are checked out beside each other, without what is not committed, and each builds its own native
library. Then processes of them take turns, A B B A, on the same work by the default model and one thread:
mixed texts, single queries, and texts that are classified. What is compared is processor time, so other
programs on the machine matter little. The ratio is formed within each pair of processes, and the interval of
its median by order statistics, which needs no assumption about how the times are distributed.
"""

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import App, Parameter
from safetensors.numpy import load_file, save_file

from benchmarks.peers.workloads import QUERIES, QUERY_TOKENS, mixed_lengths, of_lengths
from unmask.base.optional import require
from unmask.base.progress import Progress
from unmask.bench.benchmark_model import invented_lines
from unmask.bench.timing import Spread
from unmask.cli.main import main
from unmask.cli.options import JsonOption
from unmask.cli.output import console, present, progress, safe, table
from unmask.errors import InvalidRequest, quoted
from unmask.models.load import load

COMMAND = "python -m benchmarks.compare"
REPOSITORY = Path(__file__).parents[1]
WORK = Path(__file__).with_name("compared_work.py")
NATIVE = ("hatch_build.py", "unmask/engines/native")
"""What a native library is built from."""
LEAST_ROUNDS = 6
"""With fewer pairs even their lowest and highest ratio are no interval of 95 %."""
LONGEST_TEXT = 128
TOKENIZER_FILES = {"tokenizer.json", "tokenizer_config.json", "vocab.txt"}
LABELS = 4
TIMEOUT_SECONDS = 600

app = App(
    name=COMMAND,
    help="Compare the speed of two commits; exit with 1 if the second one is slower.",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)


@dataclass(frozen=True)
class Commit:
    """A commit of this repository."""

    name: str
    """As it was written, such as ``main``."""
    sha: str

    def __str__(self) -> str:
        short = self.sha[:10]
        return short if self.sha.startswith(self.name) else f"{self.name} ({short})"


@dataclass(frozen=True)
class Compared:
    """One workload in both commits."""

    workload: str
    base_ms: Spread
    """Processor milliseconds of a process, at its best of several times."""
    head_ms: Spread
    ratio: float
    """Processor time of the second commit divided by that of the first: the median of all pairs."""
    low: float
    """The interval of the ratio, of at least 95 %."""
    high: float
    slower: bool
    """Whether the whole interval is beyond the limit."""


@dataclass(frozen=True)
class Comparison:
    """Two commits."""

    base: Commit
    head: Commit
    rounds: int
    limit_percent: float
    workloads: tuple[Compared, ...]

    @property
    def sentence(self) -> str:
        """The verdict."""
        slower = [row for row in self.workloads if row.slower]
        if not slower:
            return (
                f"{self.head} is not shown to be more than {self.limit_percent:g} % slower than {self.base}."
            )
        rows = ", ".join(
            f"{row.workload} by {percent(row.ratio)}, at least {percent(row.low)}" for row in slower
        )
        return f"{self.head} is slower than {self.base}: {rows}; the limit is {self.limit_percent:g} %."


@app.default
def compare(
    base: Annotated[str, Parameter(help="the commit to compare with, such as main")],
    head: Annotated[str, Parameter(help="the commit to judge")] = "HEAD",
    *,
    limit: Annotated[float, Parameter(help="percent by which a workload may be slower")] = 3.0,
    rounds: Annotated[int, Parameter(help="pairs of processes, at least 6")] = 12,
    count: Annotated[int, Parameter(help="number of mixed texts")] = 150,
    repeats: Annotated[int, Parameter(help="times that a process does the work; the best counts")] = 5,
    json: JsonOption = False,
) -> None:
    """Compare the speed of two commits on the default model; exit with 1 if the second one is slower."""
    report = run(base, head, limit=limit, rounds=rounds, count=count, repeats=repeats)
    present(report, show, json=json)
    if any(row.slower for row in report.workloads):
        sys.exit(1)


def run(
    base: str,
    head: str,
    *,
    limit: float = 3.0,
    rounds: int = 12,
    count: int = 150,
    repeats: int = 5,
) -> Comparison:
    """Check out, build and measure both commits.

    Raises:
        InvalidRequest: an argument is out of its range, a commit is unknown, or its work fails.
        MissingExtra: the default model is not installed.
    """
    for name, number, least in (
        ("rounds", rounds, LEAST_ROUNDS),
        ("count", count, 1),
        ("repeats", repeats, 1),
    ):
        if number < least:
            raise InvalidRequest(f"{name} is {number}; it must be at least {least}")
    if not 0 <= limit < math.inf:
        raise InvalidRequest(f"limit is {limit:g}; it must be a number of percent, at least 0")
    repository = REPOSITORY
    commits = [commit_of(repository, name) for name in (base, head)]
    with tempfile.TemporaryDirectory(prefix="unmask-compare-") as name, progress("Comparing", 0) as report:
        place = Path(name)
        content = {**work_of(place, count), "repeats": repeats}
        with checkouts(repository, place, commits) as roots:
            build(repository, roots, commits)
            requests = [request_of(root, content) for root in roots]
            times = alternated(requests, commits, rounds, report)
    return Comparison(commits[0], commits[1], rounds, limit, tuple(judged(*times, limit)))


def commit_of(repository: Path, name: str) -> Commit:
    """The commit of this name.

    Raises:
        InvalidRequest: there is none, or no repository.
    """
    done = _git(repository, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if done.returncode:
        raise InvalidRequest(
            f"{quoted(name)} is no commit of the git repository in {repository}; name one, such as main"
        )
    return Commit(name, done.stdout.strip())


@contextmanager
def checkouts(repository: Path, place: Path, commits: Sequence[Commit]) -> Iterator[list[Path]]:
    """The folders of the commits, as worktrees that are removed when the block ends."""
    roots = [place / "base", place / "head"]
    try:
        for root, commit in zip(roots, commits, strict=True):
            done = _git(repository, "worktree", "add", "--detach", "--quiet", str(root), commit.sha)
            if done.returncode:
                raise InvalidRequest(f"{commit} cannot be checked out: {_last(done.stderr)}")
        yield roots
    finally:
        for root in roots:
            _git(repository, "worktree", "remove", "--force", str(root))


def build(repository: Path, roots: Sequence[Path], commits: Sequence[Commit]) -> None:
    """Build the native library of each commit; where both have the same source, it is built once and copied.

    Raises:
        InvalidRequest: it can be built in one of them only, so the commits would run different engines.
    """
    base, head = roots
    libraries = [_built(base, commits[0])]
    if _git(repository, "diff", "--quiet", commits[0].sha, commits[1].sha, "--", *NATIVE).returncode == 0:
        for library in libraries[0]:
            (head / library.relative_to(base)).write_bytes(library.read_bytes())
        return
    libraries.append(_built(head, commits[1]))
    if bool(libraries[0]) != bool(libraries[1]):
        without = commits[0] if not libraries[0] else commits[1]
        raise InvalidRequest(f"the native library of {without} was not built, and that of the other one was")


def _built(root: Path, commit: Commit) -> list[Path]:
    done = subprocess.run(
        [sys.executable, "hatch_build.py"], cwd=root, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InvalidRequest(f"hatch_build.py of {commit} failed: {_last(done.stderr)}")
    return [root / line for line in done.stdout.splitlines() if line]


def work_of(place: Path, count: int) -> dict[str, Any]:
    """What both commits do: folders of an embedder and a classifier, and the texts.

    Raises:
        MissingExtra: the default model is not installed.
    """
    require("default")
    model = load("default")
    folder = model.checkpoint.source.folder
    lines = invented_lines(model.tokenizer, seed=0)
    mixed = of_lengths(model.tokenizer, mixed_lengths(count, LONGEST_TEXT, seed=0), lines, "its vocabulary")
    queries = of_lengths(model.tokenizer, [QUERY_TOKENS] * QUERIES, lines, "its vocabulary")
    return {
        "embedder": str(folder),
        "classifier": str(as_classifier(folder, place / "classifier")),
        "texts": mixed.texts,
        "queries": queries.texts,
    }


def as_classifier(folder: Path, out: Path) -> Path:
    """The encoder of a BERT's folder with a random classification head, in a new folder."""
    out.mkdir()
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {str(label): f"label {label}" for label in range(LABELS)},
        "label2id": {f"label {label}": label for label in range(LABELS)},
    }
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in TOKENIZER_FILES & {path.name for path in folder.iterdir()}:
        (out / name).write_bytes((folder / name).read_bytes())
    rng = np.random.default_rng(0)
    tensors = {f"bert.{name}": value for name, value in load_file(folder / "model.safetensors").items()}
    tensors["classifier.weight"] = rng.normal(0, 0.02, (LABELS, config["hidden_size"])).astype(np.float32)
    tensors["classifier.bias"] = np.zeros(LABELS, np.float32)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


def request_of(root: Path, content: Mapping[str, Any]) -> Path:
    """The file that says what the processes of a commit do; it lies beside the checkout."""
    path = root.with_suffix(".json")
    path.write_text(json.dumps({**content, "root": str(root)}), encoding="utf-8")
    return path


Times = dict[str, list[float]]
"""Processor seconds of each workload, one per process."""


def alternated(
    requests: Sequence[Path], commits: Sequence[Commit], rounds: int, progress: Progress | None = None
) -> tuple[Times, Times]:
    """Run the processes in the order A B B A A B; the times of both commits, pair by pair."""
    times: tuple[Times, Times] = ({}, {})
    for turn in range(2 * rounds):
        which = (turn + turn // 2) % 2
        for workload, seconds in ran(requests[which], commits[which]).items():
            times[which].setdefault(workload, []).append(seconds)
        if progress is not None:
            progress(turn + 1, 2 * rounds)
    return times


def ran(request: Path, commit: Commit) -> dict[str, float]:
    """One process of a commit: the processor seconds of each workload.

    Raises:
        InvalidRequest: it failed, or took too long.
    """
    root = request.with_suffix("")
    try:
        done = subprocess.run(
            # -P: not even the folder of the script, which is that of this commit, is on the path.
            [sys.executable, "-P", str(WORK), str(request)],
            cwd=root,
            env=environment(root),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidRequest(
            f"{commit} did not finish within {TIMEOUT_SECONDS} s; take a smaller count"
        ) from None
    if done.returncode:
        raise InvalidRequest(f"{commit} cannot do the work: {_last(done.stderr)}")
    return {name: float(seconds) for name, seconds in json.loads(done.stdout.splitlines()[-1]).items()}


def environment(root: Path) -> dict[str, str]:
    """The environment of a process of a commit: its package, and one thread."""
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return os.environ | one_thread | {"PYTHONPATH": str(root)}


def judged(base: Times, head: Times, limit: float) -> Iterator[Compared]:
    """Each workload, with its ratio and whether it is slower than the limit in percent allows."""
    for workload, before in base.items():
        after = head[workload]
        ratios = [b / a for a, b in zip(before, after, strict=True)]
        low, high = median_interval(ratios)
        yield Compared(
            workload=workload,
            base_ms=Spread.of([1e3 * seconds for seconds in before]),
            head_ms=Spread.of([1e3 * seconds for seconds in after]),
            ratio=statistics.median(ratios),
            low=low,
            high=high,
            slower=low > 1 + limit / 100,
        )


def median_interval(values: Sequence[float], outside: float = 0.05) -> tuple[float, float]:
    """An interval that contains the median of a distribution, by independent draws from it.

    It is that of two order statistics. The median is outside with a probability of at most ``outside``,
    whatever the distribution; with fewer than `LEAST_ROUNDS` values it is so more often.
    """
    ordered, count = sorted(values), len(values)
    beyond, skipped = (
        2 / 2**count,
        0,
    )  # of the lowest and the highest: all draws are on one side of the median
    while (beyond := beyond + 2 * math.comb(count, skipped + 1) / 2**count) <= outside:
        skipped += 1
    return ordered[skipped], ordered[-1 - skipped]


def percent(ratio: float) -> str:
    """A ratio of times as how much more time it is."""
    return f"{100 * (ratio - 1):.1f} %"


def show(report: Comparison) -> None:
    """Print the workloads and the verdict."""
    right = ("base, ms", "head, ms", "ratio", "95 % interval")
    grid = table(None, "workload", *right, right=right)
    for row in report.workloads:
        times = (f"{spread.median:.1f}" for spread in (row.base_ms, row.head_ms))
        grid.add_row(row.workload, *times, f"{row.ratio:.3f}", f"{row.low:.3f} to {row.high:.3f}")
    console().print(grid)
    console().print(safe(report.sentence))


def _git(repository: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _last(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it printed no reason"


if __name__ == "__main__":
    main(lambda _: app, COMMAND)

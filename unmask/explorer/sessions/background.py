"""Work in the background: analyses, each made once and kept; reading a corpus."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from unmask.errors import OutputError, UnmaskError
from unmask.explorer.sessions.models import Models
from unmask.http.responses import Problem, Refused
from unmask.http.worker import Job, Watch, Worker
from unmask.interpret.corpus.measure import CorpusStatistics, kept_totals, measure_corpus
from unmask.interpret.corpus.statistics import HeadTotals, cache_file
from unmask.interpret.corpus.texts import Corpus, corpus_of
from unmask.interpret.overview.figures import FigureCounts

Value = TypeVar("Value")

KEPT = 48
"""Results kept; the one unused for longest leaves first. Those still being made come on top."""


@dataclass(frozen=True)
class Underway:
    """An analysis in progress. ``name``: which one, as the server calls it; ``what``: its present stage, of
    which ``done`` of ``total`` steps are done; ``eta_s``: the seconds left of it, None until known."""

    name: str
    phase: str
    what: str
    done: int
    total: int
    seconds: float
    eta_s: float | None


@dataclass(frozen=True)
class UnderwayList:
    """The analyses in progress of a text, or of no text."""

    analyses: tuple[Underway, ...]


class Analyses:
    """Results by key, made by jobs of a worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._made: OrderedDict[Hashable, tuple[Job, list[Any]]] = OrderedDict()
        self._lock = threading.Lock()

    def once(self, key: Hashable, work: Callable[[Watch], Value]) -> Value:
        """The result of ``work``, waited for; its error is raised here, and the next who asks tries again."""
        with self._lock:
            if key not in self._made:
                self._make_room()
                results: list[Any] = []
                job = Job(lambda watch: results.append(work(watch)))
                self._made[key] = job, results
                self._worker.start(job)
            self._made.move_to_end(key)
            job, results = self._made[key]
        job.ended.wait()
        if results:
            return cast(Value, results[0])
        with self._lock:
            if self._made.get(key, (None,))[0] is job:
                del self._made[key]
        raise job.error or Refused(409, "Stopped", "this analysis was stopped; ask for it again")

    def _make_room(self) -> None:
        """Drop results until one more may be kept; none still being made, which `stop` must reach."""
        ended = [key for key, (job, _) in self._made.items() if job.ended.is_set()]
        for key in ended[: max(0, len(self._made) - KEPT + 1)]:
            del self._made[key]

    def underway(self) -> list[tuple[Hashable, Job]]:
        """Those that have not ended, by key, in the order in which they were asked for."""
        with self._lock:
            return [(key, job) for key, (job, _) in self._made.items() if not job.ended.is_set()]

    def stop(self, name: str | None = None) -> None:
        """Stop those that run: all, or those whose key is ``name`` or begins with it."""
        for key, job in self.underway():
            if name is None or name_of(key) == name:
                job.stop()


def name_of(key: Hashable) -> str:
    """The name of an analysis: its key, or the first part of that."""
    return str(key[0] if isinstance(key, tuple) else key)


def _not_started() -> Job:
    """A job in place of one that was not started yet."""
    job = Job(lambda watch: None)
    job.phase = "none"
    return job


@dataclass(frozen=True)
class CorpusState:
    """How far a corpus is read by a model. ``phase``: none, waiting, running, done, stopped or failed.

    ``texts`` of ``total`` are in the answers, the first ``done`` are read. ``compared``: texts that findings
    are compared with now, of this launch or, before any are read, of an earlier one. ``kept``: where results
    are kept for the next launch, or None, if they are not; ``note`` says why not. ``from_cache``: all
    were kept.
    """

    model: int
    name: str
    phase: str
    done: int
    texts: int
    total: int
    compared: int
    tokens: int
    truncated: int
    seconds: float
    eta_s: float | None
    from_cache: bool
    kept: str | None
    note: str | None
    problem: Problem | None


@dataclass
class _Run:
    job: Job
    statistics: CorpusStatistics | None = None
    cache: Path | None = None
    note: str | None = None


class Corpora:
    """The corpus of one explorer, as far as its models have read it.

    Args:
        corpus: a file or texts; None takes the sentences of the package.
        cache: the folder where results are kept; None keeps them in memory alone.
        models: the explorer's models.
        worker: runs one model at a time.
    """

    def __init__(
        self, corpus: Corpus | str | Path | None, cache: Path | None, models: Models, worker: Worker
    ) -> None:
        self._given = corpus
        self._cache = cache
        self._models = models
        self._worker = worker
        self._runs: dict[int, _Run] = {}
        self._recalled: dict[int, HeadTotals | None] = {}
        """What earlier launches kept, by model; None while it is looked for, and where there is nothing."""
        self._lock = threading.Lock()

    @cached_property
    def corpus(self) -> Corpus:
        """The texts.

        Raises:
            TextError: the file cannot be read, or has no text.
        """
        return corpus_of(self._given)

    def start(self, index: int) -> CorpusState:
        """Begin to read the corpus with a model, or resume; does nothing if that runs or is done."""
        self._models.at(index)
        with self._lock:
            run = self._runs.get(index)
            if run is None or run.job.phase in ("stopped", "failed"):
                before = None if run is None else run.statistics
                run = _Run(Job(lambda watch: self._work(index, watch)), before)
                self._runs[index] = run
                self._worker.start(run.job)
        return self.state(index)

    def stop(self, index: int) -> None:
        """Stop reading; what is found stays."""
        self._models.at(index)
        run = self._runs.get(index)
        if run is not None:
            run.job.stop()

    def state(self, index: int) -> CorpusState:
        """Progress of a model."""
        self._models.at(index)
        run = self._runs.get(index) or _Run(_not_started())
        statistics, job, eta = run.statistics, run.job, run.job.eta_seconds
        return CorpusState(
            model=index,
            name=self.corpus.name,
            phase=job.phase,
            done=max(job.done, 0 if statistics is None else statistics.totals.texts),
            texts=0 if statistics is None else statistics.totals.texts,
            total=len(self.corpus),
            compared=0 if (figures := self._figures(index)) is None else figures.texts,
            tokens=0 if statistics is None else statistics.totals.queries,
            truncated=0 if statistics is None else statistics.truncated,
            seconds=round(job.seconds, 1),
            eta_s=None if eta is None else round(eta, 1),
            from_cache=statistics is not None and statistics.from_cache,
            kept=None if run.cache is None else str(run.cache.parent),
            note=run.note,
            problem=job.problem,
        )

    def statistics(self, index: int) -> CorpusStatistics:
        """The statistics so far of the heads of a model.

        Raises:
            Refused: nothing is known yet.
        """
        self._models.at(index)
        run = self._runs.get(index)
        if run is None or run.statistics is None:
            raise Refused(409, "NotReady", "the corpus has not been read yet; try again in a moment")
        return run.statistics

    def known(self, index: int) -> FigureCounts | None:
        """What is known of the heads of a model now, without waiting: of the texts that were read so far.

        Where reading was not started, what an earlier launch kept is looked for in the background, once; it
        is here at a later call.
        """
        figures = self._figures(index)
        if figures is not None:
            return figures
        with self._lock:
            if self._cache is not None and index not in self._recalled:
                self._recalled[index] = None
                # No job of the worker, whose turns are for models that run: this only reads files.
                threading.Thread(target=self._recall, args=(index,), daemon=True).start()
        return self._figures(index)

    def _figures(self, index: int) -> FigureCounts | None:
        run, recalled = self._runs.get(index), self._recalled.get(index)
        if run is not None and run.statistics is not None:
            return run.statistics.figures
        return None if recalled is None else recalled.figures

    def _recall(self, index: int) -> None:
        model = self._models.at(index).need()
        assert self._cache is not None
        try:
            identity = model.content_digest()
            file = cache_file(self._cache, identity, self.corpus.sha256)
            kept = kept_totals(model.encoder, self.corpus, file, model.max_tokens, identity)
        except UnmaskError:
            return  # nothing is compared; who reads the corpus gets the same error
        self._recalled[index] = kept

    def _work(self, index: int, watch: Watch) -> None:
        model, run = self._models.at(index).need(), self._runs[index]
        identity = ""
        if self._cache is not None:
            identity = model.content_digest()
            try:
                run.cache = cache_file(self._cache, identity, self.corpus.sha256)
            except OutputError as error:
                run.note = str(error)

        def partial(statistics: CorpusStatistics) -> None:
            run.statistics = statistics

        def measure(cache: Path | None) -> CorpusStatistics:
            return measure_corpus(
                model.encoder,
                model.tokenizer,
                self.corpus,
                max_tokens=model.max_tokens,
                cache=cache,
                identity=identity,
                known=run.statistics,
                watch=watch,
                partial=partial,
            )

        try:
            run.statistics = measure(run.cache)
        except OutputError as error:
            # A full disk is no reason to show nothing.
            run.cache, run.note = None, str(error)
            run.statistics = measure(None)

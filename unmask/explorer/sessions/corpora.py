"""A corpus read by the models of an explorer in the background: one job for each, and what it has found."""

import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from unmask.errors import OutputError
from unmask.explorer.sessions.models import Models
from unmask.http.errors import Problem, Refused
from unmask.http.worker import Job, Watch, Worker
from unmask.interpret.corpus.measure import CorpusStatistics, measure_corpus
from unmask.interpret.corpus.statistics import cache_file
from unmask.interpret.corpus.texts import Corpus, corpus_of


@dataclass(frozen=True)
class CorpusState:
    """How far a corpus is read by a model. ``phase``: none, waiting, running, done, stopped or failed.

    ``texts`` of ``total`` are in the answers, the first ``done`` are read. ``kept``: where results are kept
    for the next launch, or None, if they are not; ``note`` says why not. ``from_cache``: all were kept.
    """

    model: int
    name: str
    phase: str
    done: int
    texts: int
    total: int
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
    found: CorpusStatistics | None = None
    kept: Path | None = None
    note: str | None = None


class Corpora:
    """The corpus of one explorer, as far as its models have read it.

    Args:
        given: a file or texts; None takes the sentences of the package.
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
                before = None if run is None else run.found
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
        run = self._runs.get(index)
        statistics = None if run is None else run.found
        job = None if run is None else run.job
        eta = None if job is None else job.eta_seconds
        return CorpusState(
            model=index,
            name=self.corpus.name,
            phase="none" if job is None else job.phase,
            done=max(0 if job is None else job.done, 0 if statistics is None else statistics.totals.texts),
            texts=0 if statistics is None else statistics.totals.texts,
            total=len(self.corpus),
            tokens=0 if statistics is None else statistics.totals.queries,
            truncated=0 if statistics is None else statistics.truncated,
            seconds=0.0 if job is None else round(job.seconds, 1),
            eta_s=None if eta is None else round(eta, 1),
            from_cache=statistics is not None and statistics.from_cache,
            kept=None if run is None or run.kept is None else str(run.kept.parent),
            note=None if run is None else run.note,
            problem=None if job is None else job.problem,
        )

    def found(self, index: int) -> CorpusStatistics:
        """What is known so far of the heads of a model.

        Raises:
            Refused: nothing is known yet.
        """
        self._models.at(index)
        run = self._runs.get(index)
        if run is None or run.found is None:
            raise Refused(409, "NotReady", "the corpus has not been read yet; try again in a moment")
        return run.found

    def _work(self, index: int, watch: Watch) -> None:
        model, run = self._models.at(index).need(), self._runs[index]
        identity = ""
        if self._cache is not None:
            identity = model.content_digest()
            try:
                run.kept = cache_file(self._cache, identity, self.corpus.sha256)
            except OutputError as error:
                run.note = str(error)

        def partial(statistics: CorpusStatistics) -> None:
            run.found = statistics

        def measure(cache: Path | None) -> CorpusStatistics:
            return measure_corpus(
                model.encoder,
                model.tokenizer,
                self.corpus,
                max_tokens=model.max_tokens,
                cache=cache,
                identity=identity,
                known=run.found,
                watch=watch,
                partial=partial,
            )

        try:
            run.found = measure(run.kept)
        except OutputError as error:
            # A full disk is no reason to show nothing.
            run.kept, run.note = None, str(error)
            run.found = measure(None)

"""The index: documents, their views, and searching them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args, overload

import numpy as np
from numpy.typing import NDArray

from unmask.arguments import check_callable, check_choice, check_flag, listed, whole_number
from unmask.errors import InvalidRequest, quoted
from unmask.loaded import Model, load
from unmask.model.spec import PairScore
from unmask.search.additions import Addition, Given, compact, deleted_with
from unmask.search.analysis import Analyzer
from unmask.search.contents import Contents
from unmask.search.documents.values import Document
from unmask.search.explain import Explainer
from unmask.search.filters import Filter, accepting
from unmask.search.models import ModelIdentity, longest_passage, view_of
from unmask.search.options import Chunking, Mode, Stemmer, Unit, View, Why
from unmask.search.queries import Query
from unmask.search.ranking import Ranking
from unmask.search.searcher import Searcher
from unmask.search.settings import PASSAGE_TOKENS, IndexSettings, PassageSettings
from unmask.search.store import Check, Store, writing
from unmask.search.values import Added, Explanation, Hit, Span
from unmask.tasks import Progress

RERANKED = 50
"""Hits of the first stage that a reranker scores."""

MOST_SEGMENTS = 16
"""More segments than this are merged into one after an addition."""

Models = str | Path | Model | Sequence[str | Path | Model]
"""One model or several, loaded or by name; each gives the view that its checkpoint defines."""


@dataclass(frozen=True, eq=False)
class _Request:
    """The arguments of one search; see `Index.search`."""

    k: int
    mode: Mode
    unit: Unit
    among: NDArray[np.bool_] | None
    reranker: Model | None
    candidates: int | None
    why: bool | Why


class Index:
    """Documents that can be searched. Made by `create` and `open`.

    An object shows the generation that was committed when it was opened, or last changed through it;
    `refresh` shows a newer one. Any number of processes may search while one changes the index.
    """

    def __init__(
        self, path: Path, settings: IndexSettings, models: Mapping[View, Model], contents: Contents
    ) -> None:
        self.path = path
        self.settings = settings
        self._models = dict(models)
        self._show(contents)

    @classmethod
    def create(
        cls,
        path: str | Path,
        model: Models = "default",
        *,
        bm25: bool = True,
        passage_tokens: int | None = None,
        overlap_tokens: int = 0,
        chunking: Chunking = "windows",
        whole_documents: bool = False,
        stemmer: Stemmer = "english",
        sources: Sequence[str] = (),
    ) -> "Index":
        """Create an empty index in a new folder.

        Args:
            path: the folder; it must not exist, or be empty.
            model: one model or several; each gives one view: one vector per passage, one per token, or
                weights of words.
            bm25: whether to keep terms, too.
            passage_tokens: the longest passage, special tokens included; None for `PASSAGE_TOKENS`, or for
                what the model reads if that is less.
            overlap_tokens: tokens that neighboring passages share.
            chunking: ``"windows"`` embeds every passage alone, ``"late"`` the whole document (see
                `unmask.search.settings.Chunking`).
            whole_documents: keep every document as one passage. What the model cannot read is dropped, and
                counted in `Added.dropped_tokens`.
            stemmer: the language whose words BM25 reduces to their stems.
            sources: what loads each loaded model again; empty for the folders that they were read from.

        Raises:
            InvalidRequest: two models give the same view, or an argument is not one of those above.
            OutputError: the folder exists or cannot be written.
        """
        for name, flag in (("bm25", bm25), ("whole_documents", whole_documents)):
            check_flag(name, flag)
        given = [model] if isinstance(model, str | Path | Model) else listed("model", model)
        models: dict[View, Model] = {}
        identities: dict[View, ModelIdentity] = {}
        if sources and len(sources) != len(given):
            raise InvalidRequest(
                f"{len(given)} models and {len(sources)} sources are given; give one for each"
            )
        for number, one in enumerate(given):
            loaded = one if isinstance(one, Model) else load(one)
            view = view_of(loaded)
            if view in models:
                raise InvalidRequest(
                    f"{models[view].name} and {loaded.name} both give the view {view}; give one of them"
                )
            source = loaded.checkpoint.source.folder if isinstance(one, Model) else one
            source = sources[number] if sources else source
            models[view], identities[view] = loaded, ModelIdentity.of(loaded, source)
        if not models:
            raise InvalidRequest("model is empty; give at least one, such as default")
        limits = [limit for limit in map(longest_passage, models.values()) if limit is not None]
        longest = min(limits, default=None)
        tokens = _passage_tokens(passage_tokens, longest, late=chunking == "late")
        settings = IndexSettings(
            identities,
            Analyzer(stemmer) if bm25 else None,
            PassageSettings(tokens, overlap_tokens, chunking, bool(whole_documents)),
        )
        generation = Store.create(Path(path), settings.stored())
        return cls(Path(path), settings, models, Contents(generation))

    @classmethod
    def open(cls, path: str | Path, model: Models = (), *, check: Check = "full") -> "Index":
        """Open an index.

        Args:
            path: its folder.
            model: the models that it was made with, if they are loaded already or have moved; else they are
                loaded from where they were.
            check: ``"full"`` compares every block of every file with its checksum; ``"quick"`` only sizes and
                small files.

        Raises:
            CorruptIndex: a file is damaged or missing, or the folder holds no index.
            InvalidRequest: the index was made with another model; the error names both.
        """
        generation = Store.open(Path(path), check=check)
        settings = IndexSettings.of_stored(generation.settings, str(path))
        index = cls(Path(path), settings, {}, Contents(generation))
        for one in [model] if isinstance(model, str | Path | Model) else listed("model", model):
            index._accept(one)
        return index

    @staticmethod
    def verify(path: str | Path) -> tuple[str, ...]:
        """Every damage to the files of an index, one sentence each; empty if it is whole."""
        return Store.verify(Path(path))

    def refresh(self) -> "Index":
        """Show the generation that was committed last, and return the index."""
        self._show(Contents(Store.open(self.path, check="quick")))
        return self

    def __len__(self) -> int:
        """The number of documents."""
        return self._contents.document_count

    def __repr__(self) -> str:
        views = ", ".join(self.settings.views)
        return f"<unmask index {self.path}: {len(self):,} documents, {self.passages:,} passages, {views}>"

    def __contains__(self, id: object) -> bool:
        return id in self._contents.numbers

    @property
    def passages(self) -> int:
        """The number of passages."""
        return self._contents.passage_count

    @property
    def generation(self) -> int:
        """The number of the generation shown; every change adds 1."""
        return self._contents.generation.number

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all documents, in the order in which they were added."""
        return tuple(self._contents.numbers)

    def document(self, id: str) -> Document:
        """A document as it was given.

        Raises:
            InvalidRequest: there is no such document.
        """
        return self._contents.document(self._contents.number(id))

    def matches(self, query: str, hit: Hit) -> tuple[Span, ...]:
        """The characters of a hit's document whose terms are those of the query, within the passage."""
        analyzer = self.settings.analyzer or Analyzer()
        wanted = set(analyzer.counted(query))
        found = [one for one in analyzer.terms(hit.text) if one.term in wanted]
        return tuple((hit.start + one.start, hit.start + one.end) for one in found)

    def model(self, view: View) -> Model:
        """The model of a view; it is loaded when it is first needed.

        Raises:
            InvalidRequest: the index has no such view, or its model has changed since.
            CheckpointError: the model cannot be loaded.
        """
        if view not in self._models:
            if view not in self.settings.models:
                raise InvalidRequest(
                    f"the index has no view {view!r}; it has: {', '.join(self.settings.views)}"
                )
            identity = self.settings.models[view]
            self._accept(load(identity.source, revision=identity.revision), identity.source)
        return self._models[view]

    def use(self, model: Model) -> None:
        """Use a loaded model for its view, instead of loading another copy of it.

        Raises:
            InvalidRequest: the index was made with another model, or has no such view.
        """
        self._accept(model)

    def add(
        self,
        documents: Iterable[Given],
        *,
        progress: Progress | None = None,
    ) -> Added:
        """Add documents, and replace those whose content has changed.

        A document is a `Document`, a dictionary with ``id``, ``text`` and optionally ``title`` and
        ``metadata``, or a text, which gets its number as id. Documents that the index has with the same
        content are not computed again, so that an addition that was stopped can be repeated. What is computed
        is committed every few minutes of work; each commit is complete or absent.

        Args:
            documents: any iterable; it is read once. What `read_documents` skipped is passed on to `Added`.
            progress: called with (passages done, 0).

        Raises:
            InvalidRequest: two documents have one id, or a dictionary lacks a key.
            OutputError: another process is changing the index, or it cannot be written.
        """
        check_callable("progress", progress)
        models = {view: self.model(view) for view in self.settings.models}
        with writing(self.path) as writer:
            addition = Addition(writer, self.settings, models, progress)
            added = addition.run(documents)
            if len(addition.generation.segments) > MOST_SEGMENTS:
                compact(writer)
        self.refresh()
        return added

    def delete(self, ids: str | Sequence[str]) -> int:
        """Delete documents; returns how many.

        Raises:
            InvalidRequest: the index has no such document; then nothing is deleted.
            OutputError: another process is changing the index, or it cannot be written.
        """
        chosen = [ids] if isinstance(ids, str) else listed("ids", ids)
        with writing(self.path) as writer:
            contents = Contents(writer.generation)
            numbers = {contents.number(id) for id in chosen}
            writer.commit(deleted_with(contents, numbers))
        self.refresh()
        return len(numbers)

    def compact(self) -> None:
        """Merge all segments into one, without what was deleted; results do not change.

        Raises:
            OutputError: another process is changing the index, or it cannot be written.
        """
        with writing(self.path) as writer:
            compact(writer)
        self.refresh()

    @overload
    def search(  # type: ignore[overload-overlap]
        self,
        query: str,
        k: int = 10,
        mode: Mode | None = None,
        *,
        unit: Unit = "passage",
        filter: Filter | None = None,
        reranker: Model | None = None,
        candidates: int | None = None,
        why: bool | Why = False,
    ) -> tuple[Hit, ...]: ...

    @overload
    def search(
        self,
        query: Sequence[str],
        k: int = 10,
        mode: Mode | None = None,
        *,
        unit: Unit = "passage",
        filter: Filter | None = None,
        reranker: Model | None = None,
        candidates: int | None = None,
        why: bool | Why = False,
    ) -> list[tuple[Hit, ...]]: ...

    def search(
        self,
        query: str | Sequence[str],
        k: int = 10,
        mode: Mode | None = None,
        *,
        unit: Unit = "passage",
        filter: Filter | None = None,
        reranker: Model | None = None,
        candidates: int | None = None,
        why: bool | Why = False,
    ) -> tuple[Hit, ...] | list[tuple[Hit, ...]]:
        """The best passages for a query, best first; for a list of queries, a list.

        Search is exact. Equal scores are ordered by document id and place, and a query gives the same hits
        alone and in a list.

        Args:
            query: one query or several.
            k: how many hits; fewer if the index has fewer, or BM25 finds fewer with a term of the query.
            mode: the view to rank by, or ``"hybrid"``, which fuses the rankings of all views (reciprocal rank
                fusion); None is ``"hybrid"`` if there are several views.
            unit: ``"passage"`` ranks passages, ``"document"`` documents, each shown by its best passage.
            filter: which documents to search, by their metadata; see `unmask.search.filters.Filter`.
            reranker: a cross-encoder that scores the best ``candidates`` hits again and orders them.
            candidates: how many hits of a first stage are scored by the reranker (50 by default), or by many
                vectors with ``mode="multi_vector"`` (all passages by default).
            why: whether to explain every hit; ``"shares"`` leaves out gradient attribution, which takes most
                of the time.

        Raises:
            TextError: a query is blank, too long for the model, or not Unicode text.
            InvalidRequest: there is no such mode, the index lacks its view, or the filter names no metadata.
        """
        whole_number("k", k, 1)
        if candidates is not None:
            whole_number("candidates", candidates, k)
        check_choice("unit", unit, get_args(Unit))
        if why != "shares":
            check_flag("why", why)
        chosen = self._mode(mode)
        scores_pairs = isinstance(reranker, Model) and isinstance(reranker.checkpoint.head, PairScore)
        if reranker is not None and not scores_pairs:
            raise InvalidRequest(
                f"reranker is {quoted(reranker)}; give a loaded cross-encoder, which scores pairs of texts"
            )
        among = None
        if filter is not None:
            among = self._contents.matching(accepting(filter, self._contents.metadata_keys))
        queries = [query] if isinstance(query, str) else listed("query", query)
        request = _Request(k, chosen, unit, among, reranker, candidates, why)
        found = [self._search(self._searcher.query(one), request) for one in queries]
        return found[0] if isinstance(query, str) else found

    def _search(self, query: Query, request: "_Request") -> tuple[Hit, ...]:
        k, reranker = request.k, request.reranker
        depth = k if reranker is None else max(k, request.candidates or RERANKED)
        ranking, views = self._searcher.rank(
            query,
            request.mode,
            depth,
            unit=request.unit,
            among=request.among,
            candidates=request.candidates if reranker is None else None,
        )
        before = dict(zip(ranking.passages.tolist(), ranking.scores.tolist(), strict=True))
        if reranker is not None:
            ranking = self._reranked(query, ranking, reranker)
        analyzer = self.settings.analyzer or Analyzer()
        explainer = Explainer(self._searcher, query, views, analyzer, attributes=request.why != "shares")
        return tuple(
            self._hit(
                passage,
                score,
                explainer.explain(passage) if request.why else None,
                None if reranker is None else before[passage],
            )
            for passage, score in zip(ranking.passages[:k].tolist(), ranking.scores[:k].tolist(), strict=True)
        )

    def _reranked(self, query: Query, ranking: Ranking, reranker: Model) -> Ranking:
        """The ranking by a cross-encoder's scores; a passage that is too long for it is truncated."""
        texts = [self._text(passage) for passage in ranking.passages.tolist()]
        scores = reranker.score_pairs([query.text] * len(texts), texts, truncation="end")
        order = sorted(
            range(len(texts)),
            key=lambda i: (-float(scores[i]), *self._contents.tie_key(int(ranking.passages[i]))),
        )
        return Ranking(ranking.passages[order], scores[order])

    def _text(self, passage: int) -> str:
        place = self._contents.place(passage)
        return self._contents.text(place.document)[place.start : place.end]

    def _hit(
        self, passage: int, score: float, why: tuple[Explanation, ...] | None, before: float | None
    ) -> Hit:
        contents, place = self._contents, self._contents.place(passage)
        facts = contents.facts(place.document)
        return Hit(
            contents.ids[place.document],
            contents.page(place.document, place.start),
            place.start,
            place.end,
            score,
            contents.text(place.document)[place.start : place.end],
            contents.title(place.document),
            facts["metadata"],
            why,
            before,
        )

    def _mode(self, mode: Mode | None) -> Mode:
        views = self.settings.views
        if mode is None:
            return "hybrid" if len(views) > 1 else views[0]
        check_choice("mode", mode, get_args(Mode))
        if mode != "hybrid" and mode not in views:
            raise InvalidRequest(f"mode is {mode!r} and the index has the views {', '.join(views)}; take one")
        return mode

    def _accept(self, model: str | Path | Model, source: str | Path | None = None) -> None:
        """Use a model for its view.

        Raises:
            InvalidRequest: the index was made with another one, or without such a view.
        """
        loaded = model if isinstance(model, Model) else load(model)
        view = view_of(loaded)
        if view not in self.settings.models:
            raise InvalidRequest(
                f"{loaded.name} gives the view {view}, which the index does not have; it has: "
                f"{', '.join(self.settings.views)}"
            )
        given = ModelIdentity.of(loaded, source or loaded.checkpoint.source.folder)
        self.settings.models[view].require(given)
        self._models[view] = loaded

    def _show(self, contents: Contents) -> None:
        self._contents = contents
        self._searcher = Searcher(contents, self.settings, self.model)


def _passage_tokens(wanted: int | None, longest: int | None, *, late: bool) -> int:
    """The longest passage for models that read ``longest`` tokens.

    Raises:
        InvalidRequest: the model reads fewer tokens than wanted.
    """
    if wanted is None:
        return PASSAGE_TOKENS if longest is None else min(PASSAGE_TOKENS, longest)
    whole_number("passage_tokens", wanted, 8)
    if longest is not None and wanted > longest and not late:
        raise InvalidRequest(
            f"passage_tokens is {wanted} and the model reads {longest}; give at most {longest}"
        )
    return wanted

"""The index: documents, their views, and searching them."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import get_args, overload

from unmask.arguments import check_callable, check_choice, check_flag, listed
from unmask.errors import InvalidRequest, quoted
from unmask.loaded import Model, load
from unmask.search.additions import Addition, Given, compact, deleted_with
from unmask.search.analysis import Analyzer
from unmask.search.contents import Contents
from unmask.search.documents.values import Document
from unmask.search.explain import Explainer
from unmask.search.filters import Filter, accepting
from unmask.search.late_chunks import check_late_chunks
from unmask.search.models import ModelIdentity, load_again, longest_passage, models_by_view, view_of
from unmask.search.options import Chunking, Fusion, Mode, Stemmer, Unit, View, Why
from unmask.search.passages import TokensIndexed
from unmask.search.queries import Query
from unmask.search.ranking import Ranking, in_order
from unmask.search.request import RERANKED, SearchRequest
from unmask.search.searcher import DEFAULT_FUSION, Searcher
from unmask.search.settings import IndexSettings, PassageSettings, passage_tokens_of
from unmask.search.store import Check, Store, writing
from unmask.search.values import Added, Explanation, Hit, Span
from unmask.search.views.fusion import FusionSettings
from unmask.tasks import Progress
from unmask.text import Truncation

MOST_SEGMENTS = 16
"""More segments than this are merged into one after an addition."""

Models = str | Path | Model | Sequence[str | Path | Model]
"""One model or several, loaded or by name; each gives the view that its checkpoint defines."""


class Index:
    """Documents that can be searched. Made by `create` and `open`.

    An object shows the generation that was committed when it was opened, or last changed through it;
    `refresh` shows a newer one. Any number of processes may search while one changes the index.
    """

    def __init__(
        self,
        path: Path,
        settings: IndexSettings,
        models: Mapping[View, Model],
        contents: Contents,
        loader: Callable[[ModelIdentity], Model] = load_again,
    ) -> None:
        self.path = path
        self._loader = loader
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
                what the model reads if that is less, or of whole documents in any case.
            overlap_tokens: tokens that neighboring passages share.
            chunking: ``"windows"`` embeds every passage alone, ``"late"`` the whole document (see
                `unmask.search.options.Chunking`).
            whole_documents: keep every document as one passage. Models read its beginning, as much as they
                can; the tokens that they drop are counted in `Added.dropped_tokens`. BM25 reads all.
            stemmer: the language whose words BM25 reduces to their stems.
            sources: what loads each loaded model again; empty for the folders that they were read from.

        Raises:
            InvalidRequest: two models give the same view, or an argument is not one of those above.
            OutputError: the folder exists or cannot be written.
        """
        for name, flag in (("bm25", bm25), ("whole_documents", whole_documents)):
            check_flag(name, flag)
        given = [model] if isinstance(model, str | Path | Model) else listed("model", model)
        models, identities = models_by_view(given, sources)
        if chunking == "late" and "dense" in models:
            check_late_chunks(models["dense"].embedding_head())
        longest = [longest_passage(model, whole=bool(whole_documents)) for model in models.values()]
        limits = [limit for limit in longest if limit is not None]
        settings = IndexSettings(
            identities,
            Analyzer(stemmer) if bm25 else None,
            PassageSettings(
                passage_tokens_of(
                    passage_tokens,
                    min(limits, default=None),
                    late=chunking == "late",
                    whole=bool(whole_documents),
                ),
                overlap_tokens,
                chunking,
                bool(whole_documents),
            ),
        )
        generation = Store.create(Path(path), settings.stored())
        return cls(Path(path), settings, models, Contents(generation))

    @classmethod
    def open(
        cls,
        path: str | Path,
        model: Models = (),
        *,
        check: Check = "full",
        loader: Callable[[ModelIdentity], Model] = load_again,
    ) -> "Index":
        """Open an index.

        Args:
            path: its folder.
            model: the models that it was made with, if they are loaded already or have moved; else they are
                loaded from where they were.
            check: ``"full"`` compares every block of every file with its checksum; ``"quick"`` only sizes and
                small files.
            loader: loads the model of a view, if none is given, when it is first needed.

        Raises:
            CorruptIndex: a file is damaged or missing, or the folder holds no index.
            InvalidRequest: the index was made with another model; the error names both.
        """
        generation = Store.open(Path(path), check=check)
        settings = IndexSettings.of_stored(generation.settings, str(path))
        index = cls(Path(path), settings, {}, Contents(generation), loader)
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

    def token_counts(self) -> Mapping[str, TokensIndexed]:
        """For each document how many of its tokens are indexed, and how many the models do not read."""
        facts = {id: self._contents.facts(number) for id, number in self._contents.numbers.items()}
        return {id: TokensIndexed(one["tokens"], one["dropped"]) for id, one in facts.items()}

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
            self._accept(self._loader(identity), identity.source)
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
        fusion: Fusion = "rrf",
        weights: Mapping[View, float] | None = None,
        approximate: bool = False,
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
        fusion: Fusion = "rrf",
        weights: Mapping[View, float] | None = None,
        approximate: bool = False,
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
        fusion: Fusion = "rrf",
        weights: Mapping[View, float] | None = None,
        approximate: bool = False,
        why: bool | Why = False,
    ) -> tuple[Hit, ...] | list[tuple[Hit, ...]]:
        """The best passages for a query, best first; for a list of queries, a list.

        Search is exact. Equal scores are ordered by document id and place, and a query gives the same hits
        alone and in a list.

        Args:
            query: one query or several.
            k: how many hits; fewer if the index has fewer, or BM25 finds fewer with a term of the query.
            mode: the view to rank by, or ``"hybrid"``, which fuses the rankings of all views; None is
                ``"hybrid"`` if there are several views.
            unit: ``"passage"`` ranks passages, ``"document"`` documents, each shown by its best passage.
            filter: which documents to search, by their metadata; see `unmask.search.filters.Filter`.
            reranker: a cross-encoder that scores the best ``candidates`` hits again and orders them.
            candidates: how many hits of a first stage are scored by the reranker (50 by default), or by many
                vectors with ``mode="multi_vector"`` (all passages by default).
            fusion: how hybrid search fuses rankings: ``"rrf"`` by ranks, ``"min_max"`` by scores, those of
                each view brought to the range from 0 to 1 (Bruch, Gai & Ingber 2023).
            weights: the factor of each view in hybrid search; 1 for a view that is not named.
            approximate: with ``mode="dense"`` and no filter, let a graph of neighbors propose which passages
                are scored (HNSW; needs the extra ``ann``). The graph is made at the first such search and
                kept in the folder. Worth it beyond some hundred thousand passages; scores are exact, and a
                few of the best passages can be missing.
            why: whether to explain every hit; ``"shares"`` leaves out gradient attribution, which takes most
                of the time.

        Raises:
            TextError: a query is blank, too long for the model, or not Unicode text.
            InvalidRequest: there is no such mode, the index lacks its view, or the filter names no metadata.
        """
        check_choice("unit", unit, get_args(Unit))
        if why != "shares":
            check_flag("why", why)
        check_flag("approximate", approximate)
        among = None
        if filter is not None:
            among = self._contents.matching(accepting(filter, self._contents.metadata_keys))
        queries = [query] if isinstance(query, str) else listed("query", query)
        chosen = self.mode(mode)
        if approximate and (chosen != "dense" or filter is not None):
            raise InvalidRequest(
                f"approximate search is for mode dense without a filter, and mode is {chosen}"
                f"{'' if filter is None else ' with a filter'}; leave approximate out"
            )
        mixed = self._fusion(chosen, fusion, weights or {})
        request = SearchRequest(k, chosen, unit, among, reranker, candidates, bool(approximate), mixed)
        found = [self._search(self._searcher.query(one), request, why=why) for one in queries]
        return found[0] if isinstance(query, str) else found

    def rank_documents(
        self,
        queries: Sequence[str],
        k: int = 10,
        mode: Mode | None = None,
        *,
        among: Collection[str] | None = None,
        reranker: Model | None = None,
        candidates: int | None = None,
        truncation: Truncation = "error",
    ) -> list[list[tuple[str, float]]]:
        """The ids and scores of the best documents for each query, best first.

        They are those of the hits of `search` with ``unit="document"``. No texts are read, so that rankings
        of a thousand documents are quick.

        Args:
            queries: several queries.
            k: how many documents.
            mode: see `search`.
            among: the ids of the documents to rank; None for all. Unknown ids are passed over.
            reranker: see `search`.
            candidates: see `search`.
            truncation: ``"error"`` refuses a query that is too long for a model, ``"end"`` drops its end.

        Raises:
            TextError: a query is blank, too long for the model, or not Unicode text.
            InvalidRequest: there is no such mode, or the index lacks its view.
        """
        check_choice("truncation", truncation, get_args(Truncation))
        some = None if among is None else self._contents.among(among)
        request = SearchRequest(k, self.mode(mode), "document", some, reranker, candidates)
        ids, document_P = self._contents.ids, self._contents.document_P
        found = []
        for text in listed("queries", queries):
            ranking, _, _ = self._ranked(self._searcher.query(text, truncation), request)
            documents = document_P[ranking.passages].tolist()
            found.append(
                [(ids[one], score) for one, score in zip(documents, ranking.scores.tolist(), strict=True)]
            )
        return found

    def _ranked(
        self, query: Query, request: SearchRequest
    ) -> tuple[Ranking, Ranking, Mapping[View, Ranking]]:
        """The ranking that was asked for, that of the first stage, and that of each view."""
        k, reranker = request.k, request.reranker
        depth = k if reranker is None else max(k, request.candidates or RERANKED)
        first, views = self._searcher.rank(
            query,
            request.mode,
            depth,
            unit=request.unit,
            among=request.among,
            candidates=request.candidates if reranker is None else None,
            approximate=request.approximate,
            fusion=request.fusion,
        )
        best = first if reranker is None else self._reranked(query, first, reranker)
        return Ranking(best.passages[:k], best.scores[:k]), first, views

    def _search(self, query: Query, request: SearchRequest, *, why: bool | Why) -> tuple[Hit, ...]:
        ranking, first, views = self._ranked(query, request)
        before: dict[int, float] = {}
        if request.reranker is not None:
            before = dict(zip(first.passages.tolist(), first.scores.tolist(), strict=True))
        analyzer = self.settings.analyzer or Analyzer()
        explainer = Explainer(self._searcher, query, views, analyzer, attributes=why != "shares")
        return tuple(
            self._hit(passage, score, explainer.explain(passage) if why else None, before.get(passage))
            for passage, score in zip(ranking.passages.tolist(), ranking.scores.tolist(), strict=True)
        )

    def _reranked(self, query: Query, ranking: Ranking, reranker: Model) -> Ranking:
        """The ranking by a cross-encoder's scores; a passage that is too long for it is truncated."""
        texts = [self._text(passage) for passage in ranking.passages.tolist()]
        scores = reranker.score_pairs([query.text] * len(texts), texts, truncation="end")
        order = in_order(self._contents, ranking.passages, scores)
        return Ranking(ranking.passages[order], scores[order])

    def _fusion(self, mode: Mode, kind: Fusion, weights: Mapping[View, float]) -> FusionSettings:
        """Settings of hybrid search; refuses those that would have no effect.

        Raises:
            InvalidRequest: the mode is another, or a weight is of no view of the index.
        """
        settings = FusionSettings(kind, weights)
        if settings != DEFAULT_FUSION and mode != "hybrid":
            raise InvalidRequest(
                f"fusion and weights are for hybrid search and mode is {mode}; leave them out"
            )
        for view in weights:
            if view not in self.settings.views:
                raise InvalidRequest(
                    f"weights names {quoted(view)} and the index has the views "
                    f"{', '.join(self.settings.views)}; name one of them"
                )
        return settings

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

    def mode(self, mode: Mode | None) -> Mode:
        """The mode of a search for which this one is given; None is ``"hybrid"`` if there are several views.

        Raises:
            InvalidRequest: there is no such mode, or the index lacks its view.
        """
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

"""The index: documents and their views. How it is searched is in `unmask.search.searchable`."""

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from unmask.base.arguments import check_callable, check_flag, listed, whole_number
from unmask.errors import InvalidRequest, UnmaskError
from unmask.models.load import Model
from unmask.search.additions import (
    CODEC_FACTS,
    QUANTIZER_FACTS,
    Addition,
    Given,
    compact,
    compression_facts,
    deleted_with,
)
from unmask.search.analysis import Analyzer
from unmask.search.contents import Contents
from unmask.search.documents.values import Document
from unmask.search.export.run import Exported, export
from unmask.search.late_chunks import check_late_chunks
from unmask.search.options import (
    Chunking,
    CodeRule,
    DenseBits,
    ExportedView,
    Stemmer,
    StoreFormat,
    VectorBits,
)
from unmask.search.passages import TokensIndexed
from unmask.search.searchable import SearchableIndex
from unmask.search.searcher import Searcher
from unmask.search.settings import (
    IndexSettings,
    ModelIdentity,
    PassageSettings,
    VectorSettings,
    code_rule,
    load_again,
    longest_passage,
    models_by_view,
    passage_tokens_of,
)
from unmask.search.store import Check, Store, writing
from unmask.search.values import Added, DenseCompression, VectorCompression
from unmask.tasks import Progress
from unmask.text.special import SpecialTokens

MOST_SEGMENTS = 16
"""More segments than this are merged into one after an addition."""

Models = str | Path | Model | Sequence[str | Path | Model]
"""One model or several, loaded or by name; each gives the view that its checkpoint defines."""


class Index(SearchableIndex):
    """Documents that can be searched. Made by `create` and `open`.

    An object shows the generation that was committed when it was opened, or last changed through it;
    `refresh` shows a newer one. Any number of processes may search while one changes the index.
    """

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
        code: CodeRule | None = None,
        stemmer: Stemmer = "english",
        sources: Sequence[str] = (),
        special_tokens: SpecialTokens = "text",
        vector_bits: VectorBits | None = None,
        token_pooling: int = 1,
        dense_bits: DenseBits | None = None,
        dense_floats: bool = True,
    ) -> "Index":
        """Create an empty index in a new folder.

        Args:
            path: the folder; it must not exist, or be empty.
            model: one model or several; each gives one view: one vector per passage, one per token, or
                weights of words. An empty list makes an index of BM25 alone, whose passages are counted in
                words.
            bm25: whether to keep terms, too.
            passage_tokens: the longest passage, special tokens included; None for `PASSAGE_TOKENS`, or for
                what the model reads if that is less, or of whole documents in any case.
            overlap_tokens: tokens that neighboring passages share.
            chunking: ``"windows"`` embeds every passage alone, ``"late"`` the whole document (see
                `unmask.search.options.Chunking`).
            whole_documents: keep every document as one passage. Models read its beginning, as much as they
                can; the tokens that they drop are counted in `Added.dropped_tokens`. BM25 reads all.
            code: where passages of source code begin (see `unmask.search.options.CodeRule`); None for
                ``"syntax"`` if the extra ``code`` is installed, else ``"indentation"``. The index records it
                (``settings.passages.code``), and later additions use the same.
            stemmer: the language whose words BM25 reduces to their stems.
            sources: what loads each loaded model again; empty for the folders that they were read from.
            special_tokens: what special tokens typed in documents and queries become, such as ``[SEP]``:
                text, or with ``"parse"`` their ids. Later additions and searches read alike.
            vector_bits: bits of each number of a token's vector, for models with one vector per token
                (`unmask.search.views.compression`); None stores float16. Centroids are learned from the
                documents of the first commit, so that the first addition should be many documents.
            token_pooling: how many tokens of a passage share a vector on average, for the same models
                (`unmask.search.views.compression`); 1 keeps every vector. Needs the extra ``search``.
            dense_bits: for models with one vector per passage, bits of each number of the codes that
                approximate search reads first: 8, or 1 after a random rotation
                (`unmask.search.views.compression`); None stores no codes. Ranges are learned from the
                documents of the first commit, and again by `compact`.
            dense_floats: False stores these codes and no float32, so that all dense search is by what codes
                stand for.

        Raises:
            InvalidRequest: two models give the same view, or an argument is not one of those above.
            OutputError: the folder exists or cannot be written.
        """
        flags = {"bm25": bm25, "whole_documents": whole_documents, "dense_floats": dense_floats}
        for name, flag in flags.items():
            check_flag(name, flag)
        models_given = [model] if isinstance(model, str | Path | Model) else listed("model", model)
        models, identities = models_by_view(models_given, sources, special_tokens)
        if not models and not bm25:
            raise InvalidRequest(
                "an index without a model and without BM25 has nothing to search; give a model, such as "
                "default"
            )
        if chunking == "late":
            if "dense" not in models:
                raise InvalidRequest(
                    "late chunking needs a model with one vector per passage, and none is given; give one, "
                    "such as default, or leave chunking out"
                )
            check_late_chunks(models["dense"].embedding_head())
        vectors = VectorSettings(vector_bits, token_pooling, dense_bits, dense_floats is not False)
        vectors.check_models(models)
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
                code_rule(code),
            ),
            vectors,
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
        for source in [model] if isinstance(model, str | Path | Model) else listed("model", model):
            index._accept(source)
        return index

    @staticmethod
    def verify(path: str | Path) -> tuple[str, ...]:
        """Every damage to the files of an index, one sentence each; empty if it is whole."""
        return Store.verify(Path(path))

    def refresh(self) -> "Index":
        """Show the generation that was committed last, and return the index."""
        self._show(Contents(Store.open(self.path, check="quick")))
        return self

    def prepared_refresh(self) -> Callable[[], None]:
        """Open the generation that was committed last and make what its first search would make.

        The index shows the generation that it had until the function that is returned is called, which takes
        no time, and does nothing if a newer one is shown by then. So a process that searches can call this
        one in another thread.

        Raises:
            CorruptIndex: a file is damaged or missing.
        """
        searcher = Searcher(Contents(Store.open(self.path, check="quick")), self.settings, self.model)
        searcher.prepare()
        return lambda: self._show_prepared(searcher)

    def __len__(self) -> int:
        """The number of documents."""
        return self._contents.document_count

    def __repr__(self) -> str:
        contents, views = self._contents, ", ".join(self.settings.views)
        counts = f"{contents.document_count:,} documents, {contents.passage_count:,} passages"
        return f"<unmask index {self.path}: {counts}, {views}>"

    def __contains__(self, id: object) -> bool:
        return id in self._contents.numbers

    @property
    def passages(self) -> int:
        """The number of passages."""
        return self._contents.passage_count

    @property
    def compression(self) -> VectorCompression | None:
        """How vectors of tokens are encoded; None if they are in float16, or none is stored yet."""
        contents = self._contents
        codec, learned = contents.codec, contents.codec_segment
        if codec is None or learned is None:
            return None
        facts = compression_facts(contents.segments, *CODEC_FACTS)
        return VectorCompression(
            codec.bits,
            len(codec.centroids_KE),
            codec.vector_bytes,
            facts["vectors"],
            facts["error"],
            learned.facts["error"],
            learned.facts["vectors"],
        )

    @property
    def dense_compression(self) -> DenseCompression | None:
        """Codes of dense vectors; None if the index has none, or no vector yet."""
        contents = self._contents
        quantizer, learned = contents.quantizer, contents.quantizer_segment
        if quantizer is None or learned is None:
            return None
        facts = compression_facts(contents.segments, *QUANTIZER_FACTS)
        return DenseCompression(
            quantizer.bits,
            quantizer.vector_bytes,
            self.settings.vectors.dense_floats,
            facts["dense_vectors"],
            facts["dense_error"],
            learned.facts["dense_error"],
            learned.facts["dense_vectors"],
        )

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
        contents = self._contents
        return contents.document(contents.number(id))

    def token_counts(self) -> Mapping[str, TokensIndexed]:
        """For each document how many of its tokens are indexed, and how many the models do not read."""
        contents = self._contents
        facts = {id: contents.facts(number) for id, number in contents.numbers.items()}
        return {id: TokensIndexed(fact["tokens"], fact["dropped"]) for id, fact in facts.items()}

    def add(
        self,
        documents: Given | Iterable[Given],
        *,
        progress: Progress | None = None,
        workers: int = 1,
    ) -> Added:
        """Add documents, and replace those whose content has changed.

        A document is a `Document`, a dictionary with ``id``, ``text`` and optionally ``title`` and
        ``metadata``, or a text, whose id is made of it (16 digits of its SHA-256), so that
        another text is another document. Metadata are values of JSON. Documents that the index has with the
        same content are not computed again, so that an addition that was stopped can be repeated. What is
        computed is committed every two minutes of work (`unmask.search.additions.COMMIT_SECONDS`); each
        commit is complete or absent. If an error stops the addition, the index keeps and shows what was
        committed.

        Args:
            documents: one, or any iterable of them, which is read once. What `read_documents`
                skipped is passed on to `Added`.
            progress: called with (passages done, 0).
            workers: how many processes compute; with several, each reads the models from their files. They
                compute with one thread each, and the index is that of one process with one thread.

        Raises:
            InvalidRequest: two documents have one id, a dictionary lacks a key, or metadata cannot be stored.
            ProcessLost: a worker process was ended from outside.
            OutputError: another process is changing the index, or it cannot be written.
        """
        check_callable("progress", progress)
        whole_number("workers", workers, 1)
        models = {view: self.model(view) for view in self.settings.models}
        with writing(self.path) as writer:
            before = writer.generation
            try:
                addition = Addition(writer, self.settings, models, progress, workers=workers)
                added = addition.run(documents)
                if len(addition.generation.segments) > MOST_SEGMENTS:
                    compact(writer)
            except BaseException:
                if writer.generation is not before:
                    self.refresh()
                raise
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

    def export(
        self,
        output: str | Path,
        format: StoreFormat,
        *,
        name: str = "passages",
        view: ExportedView | None = None,
        progress: Progress | None = None,
    ) -> Exported:
        """Write the passages of the index and their vectors for another vector store.

        Each passage is written with ``id`` (a UUID made of its document and place), ``document``, ``title``,
        ``page``, ``start``, ``end``, ``text``, ``metadata`` and ``vector``, or ``vectors``. Vectors are those
        of the dense view, float32 of length 1: their inner product with a query's ``embed_query`` of the same
        model and ``normalize=True`` is the score of `search` with ``mode="dense"``. Or they are those of the
        view multi_vector, float16, one for each token: their MaxSim with a query's ``multi_vectors`` is the
        score with ``mode="multi_vector"`` (times the number of the query's vectors, if the model's score is
        the mean). An index that stores codes alone writes what they stand for. Passages of about 8 MB are
        held in memory at once; Qdrant's local mode holds all.

        Args:
            output: what is written, and must not exist (an empty folder may): a file for ``"parquet"``, a
                folder or the address of a server (``http://...``) for ``"qdrant"``, else a folder.
            format: ``"parquet"``, one row per passage; ``"lance"``, a table of LanceDB, whose vectors of
                tokens must have length 1; ``"qdrant"``, a collection, of a server or in a folder
                of the local mode; ``"pgvector"``, a file for COPY in PostgreSQL and the script ``load.sql``
                that creates the table and loads it; ``"opensearch"``, ``mapping.json`` to create the index
                and bodies of ``_bulk`` requests of at most 10 MB. The last two hold no vectors of tokens.
            name: the collection, the table or the index.
            view: whose vectors are written; None for dense, or for multi_vector of an index without.
            progress: called with (passages written, all passages).

        Raises:
            InvalidRequest: the index is empty or has no such view, or an argument is not one of those above.
            OutputError: the destination exists or cannot be written; then nothing is left of it.
            MissingExtra: the package for this format is not installed.
        """
        return export(self._contents, self.settings, output, format, name=name, view=view, progress=progress)


def remove_if_empty(path: Path) -> bool:
    """Remove an index that has no document on the disk, and say whether it was removed.

    One that cannot be read stays: it may have some.
    """
    try:
        empty = not len(Index.open(path, check="quick"))
    except UnmaskError:
        return False
    if empty:
        shutil.rmtree(path, ignore_errors=True)
    return empty

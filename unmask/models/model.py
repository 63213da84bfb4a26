"""The public API of a loaded checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from unmask.base.arguments import check_callable
from unmask.base.arguments import whole_number as whole
from unmask.errors import InvalidRequest, InvalidText, quoted
from unmask.models.pretraining import PretrainingModel
from unmask.spec.global_tokens import GlobalTokens
from unmask.text import Truncation

if TYPE_CHECKING:
    from unmask.interpret import AttentionView, Watch
    from unmask.interpret.corpus.measure import CorpusStatistics
    from unmask.interpret.corpus.texts import Corpus


class Model(PretrainingModel):
    """A loaded encoder with its tokenizer. Made by `load`.

    Every method that takes a list of texts also takes one string, and then returns the result for that text
    alone. An empty list gives an empty result.
    """

    def attention(
        self,
        text: str,
        pair: str | None = None,
        *,
        truncation: Truncation = "error",
        global_tokens: GlobalTokens | None = None,
        watch: Watch | None = None,
    ) -> AttentionView:
        """Exact attention of one text (or pair): any rectangle of any head, without storing an N x N matrix.

        ``global_tokens``: which tokens are global, see `AttentionView`. ``watch``: called after each layer,
        see `unmask.interpret.Watch`.
        """
        from unmask.interpret import AttentionView

        if not isinstance(text, str):
            raise InvalidText(
                f"the text is {quoted(text)}; attention reads one text at a time, so give a string"
            )
        check_callable("watch", watch)
        self._refuse_shared_query(pair)
        (encoding,) = self._tokenized(text, pair, truncation)
        return AttentionView(self.encoder, encoding, global_tokens=global_tokens, watch=watch)

    def attention_over(
        self,
        corpus: Corpus | str | Path | Sequence[str] | None = None,
        *,
        cache: str | Path | None = None,
        watch: Watch | None = None,
        partial: Callable[[CorpusStatistics], None] | None = None,
    ) -> CorpusStatistics:
        """Statistics of every head over a corpus, and the texts in which each does something most.

        Texts of more than 512 tokens, or than the model reads, are truncated and counted.

        Args:
            corpus: a ``.txt`` file with one text on each line, a ``.jsonl`` file of objects with a ``text``,
                or a list of texts; None takes 3,024 sentences of public-domain books, which come with the
                package.
            cache: a folder where results are kept, by model and corpus; they are read from there if they
                are whole. None keeps nothing.
            watch: called with the texts done and in all; it may raise `unmask.errors.Cancelled`.
            partial: called with what is known so far, several times.

        Raises:
            TextError: the file cannot be read, or has no text.
            InvalidRequest: it is not a file of texts, or there are too many.
            OutputError: the cache cannot be written.
        """
        from unmask.interpret.corpus.measure import measure_corpus
        from unmask.interpret.corpus.stored import cache_file
        from unmask.interpret.corpus.texts import corpus_of

        check_callable("watch", watch)
        check_callable("partial", partial)
        found = corpus_of(corpus)
        kept, identity = None, ""
        if cache is not None:
            identity = self.content_digest()
            kept = cache_file(Path(cache), identity, found.sha256)
        return measure_corpus(
            self.encoder,
            self.tokenizer,
            found,
            max_tokens=self.max_tokens,
            cache=kept,
            identity=identity,
            watch=watch,
            partial=partial,
        )

    def save(self, folder: str | Path, *, shard_bytes: int | None = None) -> None:
        """Write a checkpoint folder that `transformers` and `sentence-transformers` can also load.

        ``shard_bytes``: the maximum bytes of weights per file; None writes a single file. A model that runs
        in ``int8`` is written in float32, from the weights it was loaded from.
        """
        from unmask.weights.write.save import save

        if not isinstance(folder, str | Path) or not str(folder):
            raise InvalidRequest(f"folder is {quoted(folder)}; give the name of a folder to write")
        if shard_bytes is not None:
            whole("shard_bytes", shard_bytes, 1)
        save(self.trainable_encoder(replace=False), self.checkpoint, folder, shard_bytes=shard_bytes)

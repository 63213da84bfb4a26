"""Passages that every model of an index reads whole.

Passages are cut by the tokens of one model. Another model, or the same one after a prompt, can make more
tokens of a passage than it reads; then the passage is cut once more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from unmask.models.load import Model
from unmask.search.options import View
from unmask.search.passages import Passage, cut_in_two
from unmask.spec import MultiVector
from unmask.tasks.late_texts import limit_of, with_markers
from unmask.tasks.prompts import encoded_after, prompt_of
from unmask.text import Encoding, Tokenizer


@dataclass(frozen=True, eq=False)
class Reader:
    """How a model reads a passage as a text of its own."""

    tokenizer: Tokenizer
    prompt: str
    max_tokens: int | None
    """The most that it reads, the prompt and special tokens included; None for any number."""

    @classmethod
    def of(cls, model: Model) -> "Reader":
        """The reader of a model that gives a view."""
        head = model.checkpoint.head
        tokenizer, limit = model.tokenizer, model.max_tokens
        if isinstance(head, MultiVector):
            tokenizer = with_markers(tokenizer, head.markers)
            limit = limit_of(head, "document", limit, None)
        return cls(tokenizer, prompt_of(getattr(head, "prompts", ()), "document"), limit)

    def too_long(self, texts: Sequence[str]) -> list[bool]:
        """Which texts have more tokens than the model reads.

        Raises:
            TextError: one has no word for this model.
        """
        encodings = encoded_after(
            self.tokenizer,
            self.prompt,
            texts,
            max_tokens=None,
            truncation="error",
            name=lambda _: "a passage of it",
        )
        return [self.max_tokens is not None and len(encoding) > self.max_tokens for encoding in encodings]


def readers_of(models: Mapping[View, Model], *, late: bool) -> list[Reader]:
    """The readers of an index's models, without those that read passages as tokens of the whole document.

    Args:
        models: the model of each view.
        late: whether vectors of passages are made by late chunking.
    """
    readers = []
    for view, model in models.items():
        reader = Reader.of(model)
        if view != "dense" or (reader.prompt and not late):
            readers.append(reader)
    return readers


def fitted(
    readers: Sequence[Reader],
    encoding: Encoding,
    passages: Sequence[Passage],
    kind: str = "text",
    *,
    whole: bool = False,
) -> list[Passage]:
    """The passages of a document, each cut in two until every model reads it whole.

    One that is a single token stays as it is: the model reads its beginning.

    Args:
        readers: see `readers_of`.
        encoding: the whole document.
        passages: those that `passages_of` made of it.
        kind: that of the document, see `Document.kind`.
        whole: cut nothing, and only see that every model can read something.

    Raises:
        TextError: a passage has no word for one of the models.
    """
    cut = list(passages)
    for reader in readers:
        while True:
            flags = reader.too_long([encoding.text[passage.start : passage.end] for passage in cut])
            cuttable = zip(flags, cut, strict=True)
            which = {at for at, (long, passage) in enumerate(cuttable) if long and passage.tokens > 1}
            if whole or not which:
                break
            cut = cut_in_two(encoding, cut, which, kind)
    return cut

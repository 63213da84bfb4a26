"""The work of routes that answer with typed results: entities, answers, masked words, attention, tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from unmask.engines.engine import Engine, Floats
from unmask.http.errors import Refused
from unmask.interpret.head_summary import HeadSummary
from unmask.serve.errors import BadField
from unmask.serve.fields import Inputs
from unmask.serve.models import Name, Ready, ServedModel, a_text
from unmask.serve.scheduler import Work, check_fits
from unmask.spec.encoder import masked_lm_role
from unmask.tasks.answer import answer
from unmask.tasks.classify import classifier_of
from unmask.tasks.fill import FilledMask, fill, mask_positions
from unmask.tasks.hidden_states import hidden_states
from unmask.tasks.logits import logits
from unmask.tasks.long_texts import WindowedLogits, in_windows
from unmask.tasks.tag import tag
from unmask.tasks.values import Aggregation
from unmask.text import Encoding, Truncation

MOST_ATTENTION_TOKENS = 1024
"""The longest text whose attention is measured: every head's every pair of tokens is looked at."""

COUNTED_CHARACTERS = 100_000
"""How much of a text is counted at a time."""

MOST_NUMBERS = 1 << 22
"""How many numbers an answer with a vector for each token has: as JSON, each takes up to 13 bytes."""


def embed_all(
    served: ServedModel, inputs: Inputs, *, prompt: str, named: bool, truncation: Truncation, name: Name
) -> Ready:
    """Texts or ids whose results are the last hidden states of their tokens, (N, D), as they are."""
    encodings, _ = served.encoded(inputs, prompt, named=named, truncation=truncation, name=name)
    tokens, most = sum(map(len, encodings)), MOST_NUMBERS // served.model.spec.width
    if tokens > most:
        raise BadField(
            "inputs",
            f"inputs have {tokens:,} tokens, and vectors of {most:,} at most are answered; send fewer texts",
            413,
            "too_many_tokens",
        )
    return Ready(Work((served.name, "embed_all"), partial(_states, served), served.reader), encodings)


def _states(served: ServedModel, encodings: Sequence[Encoding], engine: Engine | None = None) -> list[Floats]:
    return hidden_states(
        engine or served.model.engine,
        [one.ids for one in encodings],
        [one.token_type_ids for one in encodings],
        tokens_per_pass=served.tokens_per_pass,
        name=a_text,
    )


def entities(
    served: ServedModel,
    texts: Sequence[str],
    *,
    aggregation: Aggregation,
    truncate: bool,
    name: Name,
    most_tokens: int,
) -> Ready:
    """Texts whose results are `Tagging`, as of `Model.tag`; long ones are read in windows.

    ``most_tokens`` may wait.
    """
    head = classifier_of(served.model.spec, "tokens", "label words", served.name)
    if not truncate:
        _check_count(served, texts, most_tokens)
    whole = served.model.tokenizer.encode_batch(
        texts, max_tokens=served.model.max_tokens if truncate else None, truncation="end", name=name
    )
    return _windowed(
        served,
        "tokens",
        whole,
        lambda read: tag(head, read, aggregation=aggregation),
        truncate=truncate,
        name=name,
        most_tokens=most_tokens,
    )


def answers(
    served: ServedModel,
    question: str,
    contexts: Sequence[str],
    *,
    truncate: bool,
    name: Name,
    most_tokens: int,
    **options: Any,
) -> Ready:
    """A question whose only result is `Answers`, as of `unmask.models.load.Model.answer`."""
    _check_count(served, contexts, most_tokens)
    whole = served.model.tokenizer.encode_batch(
        [question] * len(contexts), contexts, name=lambda _: "question", pair_name=name
    )
    return _windowed(
        served,
        "span",
        whole,
        lambda read: [answer(read, **options)],
        truncate=truncate,
        name=name,
        most_tokens=most_tokens,
    )


def _check_count(served: ServedModel, texts: Sequence[str], most: int) -> None:
    """Refuse texts of more tokens than may wait before they are encoded whole, which takes much memory."""
    if sum(map(len, texts)) <= most:
        return
    engine, counted = served.model.tokenizer.engine, 0
    for text in texts:
        for start in range(0, len(text), COUNTED_CHARACTERS):
            block = text[start : start + COUNTED_CHARACTERS].encode(errors="replace").decode()
            counted += len(engine.encode_batch_fast([block], add_special_tokens=False)[0]) - 1  # a cut word
            if counted > most:
                raise Refused(
                    413,
                    "too_many_tokens",
                    f"the request has more than {most:,} tokens, the most that may wait; send fewer texts",
                )


def _windowed(
    served: ServedModel,
    role: str,
    whole: Sequence[Encoding],
    finish: Callable[[list[WindowedLogits]], list[Any]],
    *,
    truncate: bool,
    name: Name,
    most_tokens: int,
) -> Ready:
    """Windows as texts of their own, so that a long text shares passes with others as short ones do."""
    if not truncate:  # windows of more tokens than may wait would take long to make
        check_fits(sum(map(len, whole)), most_tokens)
    texts, parts = in_windows(
        whole, max_tokens=served.model.max_tokens, truncation="end" if truncate else "window", name=name
    )

    def together(values: list[Any]) -> list[Any]:
        rest = iter(values)
        return finish(
            [
                WindowedLogits(text, windows, [next(rest) for _ in windows])
                for text, windows in zip(texts, parts, strict=True)
            ]
        )

    encodings = [window.encoding for windows in parts for window in windows]
    return Ready(
        Work((served.name, "logits", role), partial(_logits, served, role), served.reader),
        encodings,
        together,
        texts,
    )


def _logits(
    served: ServedModel, role: str, encodings: Sequence[Encoding], engine: Engine | None = None
) -> list[Floats]:
    found = logits(
        engine or served.model.engine, role, encodings, tokens_per_pass=served.tokens_per_pass, name=a_text
    )
    return [found[index] for index in range(len(encodings))]


def masked_words(
    served: ServedModel, texts: Sequence[str], *, top_k: int, truncation: Truncation, name: Name
) -> Ready:
    """Texts whose results are tuples of `FilledMask`, as of `unmask.models.load.Model.fill`."""
    model = served.model
    if top_k > model.spec.embedding.vocabulary:
        raise BadField(
            "top_k",
            f"top_k is {top_k}, and the vocabulary has {model.spec.embedding.vocabulary}; ask for fewer",
        )
    encodings = model.tokenizer.with_masks.encode_batch(
        texts, max_tokens=model.max_tokens, truncation=truncation, name=name
    )
    mask_positions(model.tokenizer, encodings, served.name, name)
    # An enhanced mask decoder reads more than the last hidden states.
    reader = served.reader if masked_lm_role(model.spec) == "masked" else None
    work = Work((served.name, "masked_words", top_k), partial(_filled, served, top_k), reader)
    return Ready(work, encodings)


def _filled(
    served: ServedModel, top_k: int, encodings: Sequence[Encoding], engine: Engine | None = None
) -> list[tuple[FilledMask, ...]]:
    model = served.model
    return fill(
        engine or model.engine,
        model.tokenizer,
        encodings,
        top_k=top_k,
        tokens_per_pass=served.tokens_per_pass,
        model=served.name,
        name=a_text,
    )


@dataclass(frozen=True)
class TextAttention:
    """The attention of every head on one text."""

    tokens: tuple[str, ...]
    """The vocabulary's spelling of each token."""
    heads: tuple[HeadSummary, ...]
    """Layer by layer."""


def attention(served: ServedModel, texts: Sequence[str], *, truncation: Truncation, name: Name) -> Ready:
    """Texts whose results are `TextAttention`, as of `unmask.interpret.AttentionView.summaries`."""
    encodings = served.model.tokenize(texts, truncation=truncation, name=name)
    for index, one in enumerate(encodings):
        if len(one) > MOST_ATTENTION_TOKENS:
            raise BadField(
                "texts",
                f"{name(index)} has {len(one):,} tokens, and attention is measured over at most "
                f"{MOST_ATTENTION_TOKENS:,}; shorten it",
                413,
                "context_length_exceeded",
            )
    return Ready(Work((served.name, "attention"), partial(_attention, served)), encodings)


def _attention(served: ServedModel, encodings: Sequence[Encoding]) -> list[TextAttention]:
    encoder = served.model.encoder
    from unmask.interpret import AttentionView

    return [TextAttention(one.pieces, tuple(AttentionView(encoder, one).summaries())) for one in encodings]

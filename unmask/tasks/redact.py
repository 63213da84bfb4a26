"""Personal data replaced in texts: what has the form of an identifier, and the entities that a tagger finds.

Overlapping spans are joined, so that nothing that was found stays; the label of the longest is that of all.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast, get_args

from unmask.base.arguments import check_choice, listed
from unmask.base.one_or_many import one_text_or_many
from unmask.base.progress import Progress
from unmask.errors import InvalidRequest, quoted
from unmask.tasks import tag
from unmask.tasks.classify import THRESHOLD, classifier_of, label_names
from unmask.tasks.reader import Name, Reader, Ready, called, several
from unmask.tasks.schemes import Scheme, split_label
from unmask.tasks.tag import Entity, Tagging
from unmask.text.identifiers import PATTERNS, identifiers, plain_value
from unmask.text.lines import normalized
from unmask.text.tokenizer import check_texts, numbered

Replacement = Literal["mask", "pseudonym"]
"""What stands in place of a span: its label, such as ``[EMAIL]``, or its label with a number that is the same
for the same value, such as ``[EMAIL_2]``."""

NOTE = "patterns and models miss some personal data; read the result before you publish it"

SHORTEST_SECRET = 16
"""Characters of a secret; a shorter one can be guessed."""
DIGITS = 12
"""Hexadecimal digits of a pseudonym with a secret: of a million values, two are the same with odds of 1 to
560."""


@dataclass(frozen=True)
class RedactedSpan:
    """A part of a text that was replaced. What stood there is not repeated."""

    label: str
    """A label of the tagger, or one of `unmask.text.identifiers.PATTERNS`."""
    start: int
    """The offset of its first character in the caller's string."""
    end: int
    """The offset after its last character."""
    score: float | None
    """The score of the entity; None where the form of the characters alone says what they are."""
    replacement: str
    redacted_start: int
    """The offset of the replacement in the redacted text."""
    redacted_end: int
    """The offset after it."""


@dataclass(frozen=True)
class Redaction:
    """A text in which spans are replaced; every other character is as it was."""

    text: str
    spans: tuple[RedactedSpan, ...]
    """In their order, without overlaps."""


class Tagger(Protocol):
    """What finds entities: a `Model` with a head for tokens, or of a checkpoint of GLiNER."""

    @property
    def reader(self) -> Reader:
        """How it reads texts."""

    @property
    def tag(self) -> Any:
        """See `unmask.models.model.Model.tag`."""


@dataclass(frozen=True)
class _Found:
    start: int
    end: int
    label: str
    score: float | None


class Redactor:
    """Replaces spans of one text after another, with the same pseudonyms in all of them.

    Args:
        types: the labels of the entities that will be given.
        only: labels to replace; None for all.
        keep: labels to leave as they are.
        replacement: what stands in their place.
        secret: makes pseudonyms from values, so that several runs agree.

    Raises:
        InvalidRequest: ``only`` or ``keep`` has a label that nothing finds, or the secret is too short.
    """

    def __init__(
        self,
        types: Sequence[str] = (),
        *,
        only: Sequence[str] | None = None,
        keep: Sequence[str] | None = None,
        replacement: Replacement = "mask",
        secret: str | None = None,
    ) -> None:
        check_choice("replacement", replacement, get_args(Replacement))
        if secret is not None and replacement != "pseudonym":
            raise InvalidRequest(
                "a secret is for pseudonyms (replacement='pseudonym', or --replacement pseudonym)"
            )
        if secret is not None and (not isinstance(secret, str) or len(secret) < SHORTEST_SECRET):
            size = f"{len(secret)} characters" if isinstance(secret, str) else "no text"
            raise InvalidRequest(f"the secret has {size}; give a text of at least {SHORTEST_SECRET}")
        self._names = {shown(label) for label in (*PATTERNS, *types)}
        self._only = None if only is None else self._known("only", only)
        self._keep = frozenset() if keep is None else self._known("keep", keep)
        self._replacement = replacement
        self._key = None if secret is None else secret.encode("utf-8", "surrogatepass")
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}

    def _known(self, argument: str, labels: Sequence[str]) -> frozenset[str]:
        names = listed(argument, labels)
        if not names:
            raise InvalidRequest(f"{argument} is empty; name labels, such as EMAIL, or leave it out")
        for label in names:
            if not isinstance(label, str) or shown(label) not in self._names:
                raise InvalidRequest(
                    f"{argument} has {quoted(label)}, and nothing finds it; the labels are "
                    f"{', '.join(sorted(self._names))}"
                )
        return frozenset(map(shown, names))

    def __call__(self, text: str, entities: Sequence[Entity] = ()) -> Redaction:
        """A text with its identifiers, and these entities of it, replaced."""
        candidates = [_Found(start, end, label, None) for label, start, end in identifiers(text)]
        candidates += [_Found(each.start, each.end, each.label, each.score) for each in entities]
        parts, spans, place, length = [], [], 0, 0
        for span in _joined([each for each in candidates if self._replaces(each)]):
            replacement = self._in_place_of(span, text)
            start = length + span.start - place
            length = start + len(replacement)
            parts += [text[place : span.start], replacement]
            spans.append(
                RedactedSpan(span.label, span.start, span.end, span.score, replacement, start, length)
            )
            place = span.end
        return Redaction("".join((*parts, text[place:])), tuple(spans))

    def _replaces(self, span: _Found) -> bool:
        name = shown(span.label)
        return span.start < span.end and name not in self._keep and (self._only is None or name in self._only)

    def _in_place_of(self, span: _Found, text: str) -> str:
        name = shown(span.label)
        if self._replacement == "mask":
            return f"[{name}]"
        value = plain_value(span.label, text[span.start : span.end]) or normalized(
            text[span.start : span.end]
        )
        if self._key is not None:
            message = f"{name}\0{value}".encode("utf-8", "surrogatepass")
            return f"[{name}_{hmac.new(self._key, message, hashlib.sha256).hexdigest()[:DIGITS]}]"
        if (name, value) not in self._numbers:
            self._counts[name] = self._numbers[name, value] = self._counts.get(name, 0) + 1
        return f"[{name}_{self._numbers[name, value]}]"


def _joined(spans: Sequence[_Found]) -> list[_Found]:
    """Spans in their order, those that overlap as one with the label of the longest.

    Of equally long ones an identifier goes before an entity, and the first before the second.
    """
    joined: list[_Found] = []
    best: list[_Found] = []
    for span in sorted(spans, key=lambda span: (span.start, span.score is not None)):
        if not joined or span.start >= joined[-1].end:
            joined.append(span)
            best.append(span)
            continue
        longest = max(best[-1], span, key=lambda span: span.end - span.start)
        if longest.end - longest.start == best[-1].end - best[-1].start and best[-1].score is None:
            longest = best[-1]
        best[-1] = longest
        joined[-1] = _Found(joined[-1].start, max(joined[-1].end, span.end), longest.label, longest.score)
    return joined


def shown(label: str) -> str:
    """A label as it stands in a text: ``PHONE_NUMBER`` for ``phone number``."""
    return re.sub(r"\W+", "_", label).strip("_").upper() or "ENTITY"


def entity_types(reader: Reader, labels: Sequence[str] | None = None) -> list[str]:
    """The labels of the entities that a checkpoint finds, those that are named or those of its head.

    Raises:
        InvalidRequest: it has no head for tokens, or its labels are not of entities.
    """
    if labels is not None:
        return listed("labels", labels)
    if reader.checkpoint.label_head is not None:
        raise InvalidRequest(
            f"{reader.name} finds entities of labels that are named with the text; give labels, such as "
            "labels=['person', 'phone number']"
        )
    scheme = Scheme(label_names(classifier_of(reader.spec, "tokens", reader.name)))
    if not scheme.has_entities:
        raise InvalidRequest(
            f"{reader.name} labels words with {', '.join(scheme.labels[:8])}, which are no entities; use a "
            "checkpoint whose labels begin with B- and I-"
        )
    return list(dict.fromkeys(kind for prefix, kind in map(split_label, scheme.labels) if prefix))


@one_text_or_many
def redact(
    texts: str | Sequence[str],
    model: Tagger | None = None,
    *,
    labels: Sequence[str] | None = None,
    threshold: float | Mapping[str, float] = THRESHOLD,
    only: Sequence[str] | None = None,
    keep: Sequence[str] | None = None,
    replacement: Replacement = "mask",
    secret: str | None = None,
    progress: Progress | None = None,
    name: Name = numbered,
) -> list[Redaction]:
    """Replace personal data in texts: identifiers by their form, and entities that a model finds.

    Without a model, what `unmask.text.identifiers.PATTERNS` describes is found, and no name of a person or a
    place. Neither finds everything: read the result before you publish it. Overlapping spans are joined and
    have the label of the longest. A long text is read in windows, whole.

    A pseudonym stands for a value: numbers of cards, accounts and telephones without their gaps, other values
    without regard to case and white space. Without a secret, values are numbered in the order in which the
    call meets them. With one, a pseudonym is the beginning of the HMAC-SHA256 of its label and value (RFC
    2104): equal in every run with the secret, and without it nobody can test which value it stands for.

    Args:
        texts: one text or several; blank ones stay as they are.
        model: finds entities, such as names of persons; None for identifiers alone.
        labels: types of entities, for checkpoints of GLiNER.
        threshold: with labels, see `unmask.models.model.Model.tag`.
        only: labels to replace, such as ``["EMAIL", "PER"]``; None for all that are found.
        keep: labels to leave as they are.
        replacement: ``"mask"`` or ``"pseudonym"``.
        secret: for pseudonyms that agree between calls, at least 16 characters.
        progress: called with (windows done, windows in all) by the model.
        name: how error messages name the text at an index.

    Raises:
        TextError: a text is not Unicode text.
        InvalidRequest: the model finds no entities, or an argument is out of range.
    """
    inputs, name = several("texts", texts), called(texts, name)
    check_texts(inputs, name)
    if model is None and (labels is not None or threshold != THRESHOLD):
        raise InvalidRequest("labels and threshold are for a model; give one, or leave them out")
    if model is not None and not hasattr(model, "tag"):
        raise InvalidRequest(
            f"model is {quoted(model)}; give a loaded one, such as unmask.load('default', adapter='names')"
        )
    types = () if model is None else entity_types(model.reader, labels)
    redactor = Redactor(types, only=only, keep=keep, replacement=replacement, secret=secret)
    tagging = {"labels": labels, "threshold": threshold, "progress": progress}
    return redacted(redactor, list(map(str, inputs)), model, name=name, **tagging)


def redacted(
    redactor: Redactor, texts: Sequence[str], model: Tagger | None, *, name: Name, **tagging: Any
) -> list[Redaction]:
    """Texts with their identifiers, and the entities that a model finds, replaced.

    ``tagging``: arguments of `unmask.models.model.Model.tag`.
    """
    if model is None:
        return [redactor(text) for text in texts]
    places = _with_words(texts)
    taggings = model.tag(
        [texts[place] for place in places], name=lambda index: name(places[index]), **tagging
    )
    return _replaced(redactor, texts, places, taggings)


def prepare(
    reader: Reader, texts: Sequence[str], redactor: Redactor, *, name: Name, **tagging: Any
) -> Ready[list[Redaction]]:
    """`redacted` by the entities of a checkpoint; ``tagging``: arguments of `unmask.tasks.tag.prepare`."""
    places = _with_words(texts)
    ready = tag.prepare(
        reader, [texts[place] for place in places], name=lambda index: name(places[index]), **tagging
    )
    return replace(
        cast("Ready[Any]", ready),
        finish=lambda values: _replaced(redactor, texts, places, ready.finish(values)),
    )


def _with_words(texts: Sequence[str]) -> list[int]:
    return [place for place, text in enumerate(texts) if text.strip()]


def _replaced(
    redactor: Redactor, texts: Sequence[str], places: Sequence[int], taggings: Sequence[Tagging]
) -> list[Redaction]:
    entities = {place: tagging.entities for place, tagging in zip(places, taggings, strict=True)}
    return [redactor(text, entities.get(place, ())) for place, text in enumerate(texts)]

"""Whether one text follows another, by a head of pretraining: next sentences, or their order."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from unmask.errors import InvalidRequest
from unmask.spec import Classifier
from unmask.tasks.classify import classifier_of, probabilities
from unmask.tasks.logits import Coverage, logits_of_each
from unmask.tasks.reader import Name, Reader, Ready, called
from unmask.text import Encoding, Truncation
from unmask.text.tokenizer import numbered

ROLES_READ = ("next_sentence", "sentence_order")
"""Heads that judge pairs of texts, of BERT and of ALBERT."""


@dataclass(frozen=True)
class Continuation(Coverage):
    """The prediction for one pair of texts."""

    follows: bool
    """Whether it is more probable than not that the second text follows the first."""
    probability: float
    """That it does: of next sentence prediction against a sentence from elsewhere (Devlin et al. 2019), of
    sentence order prediction against the swapped order (Lan et al. 2020)."""


def prepare(
    reader: Reader,
    firsts: str | Sequence[str],
    seconds: str | Sequence[str],
    *,
    truncation: Truncation = "error",
    name: Name = numbered,
) -> Ready[list[Continuation]]:
    """Whether each second text follows its first; arguments as of `unmask.models.model.Model.follows`."""
    roles = [head.role for head in reader.spec.heads if isinstance(head, Classifier)]
    role = next((role for role in ROLES_READ if role in roles), ROLES_READ[0])
    head = classifier_of(reader.spec, role, reader.name)
    if head.classes != 2:
        raise InvalidRequest(
            f"{reader.name} cannot judge whether one text follows another, because its {role} head has "
            f"{head.classes} classes instead of 2; use another checkpoint"
        )
    if seconds is None:
        raise InvalidRequest("seconds is None; give the text that may follow each first text")
    name = called(firsts, name)
    encodings = reader.tokenized(firsts, seconds, truncation=truncation, name=name)
    return Ready(
        encodings,
        partial(logits_of_each, role=role),
        lambda values: [
            _continuation(encoding, float(probabilities(logits_C, "single_label_classification")[0]))
            for encoding, logits_C in zip(encodings, values, strict=True)
        ],
        ("logits", role),
        name,
    )


def _continuation(encoding: Encoding, probability: float) -> Continuation:
    """Class 0 is that of texts which follow each other, in both kinds of head."""
    return Continuation(
        probability > 0.5,
        probability,
        tokens_read=len(encoding),
        windows=1,
        truncated_tokens=encoding.truncated_tokens,
    )

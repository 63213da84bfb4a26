"""What a head predicts: its role, a value that everything about a kind of head is read from.

Families, configs of checkpoints, adapters, objectives, fine-tuning, tasks and descriptions read `ROLES`. The
state that a head reads (`unmask.spec.Reads`) is not part of its role, because it differs between families.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

LabeledRole = Literal["sequence", "tokens", "span", "choice"]
"""The roles of classifiers that learn from labeled texts: the class of a text, the class of each token, where
an answer starts and ends, or how well one of several choices fits a question."""

ClassifierRole = LabeledRole | Literal["next_sentence", "sentence_order", "replaced", "prune"]
"""The roles of classifiers. Those of pretraining say whether the second sentence follows the first (Devlin et
al. 2019), whether two sentences are in order (Lan et al. 2020), or which tokens were replaced (Clark et al.
2020). ``prune``: which tokens of a document a query needs (Chirkova et al. 2025)."""

RoleName = ClassifierRole | Literal["masked", "enhanced"]
"""The roles of all heads. An MLM head is ``masked``, or ``enhanced`` if it was trained on the states of a
decoder with absolute positions (He et al. 2021)."""

NamedTokens = Literal["none", "first", "question", "second"]
"""Which tokens of a text are global: no token; the first token; in a pair, all tokens before the separator
that ends the first text, or all from the first of the second text to the end."""

Targets = Literal["texts", "words", "spans", "choices"]
"""What a labeled record has a target for: the text, each of its words, both bounds of an answer in it, or one
of the choices of a question. It decides the loss, see `unmask.training.objectives.labeled`."""


@dataclass(frozen=True)
class Role:
    """Everything about one kind of head that is the same in all families."""

    predicts: str
    """What it predicts, for people."""
    classes: int | None = None
    """The number of its classes, if the role determines it."""
    has_labels: bool = False
    """Whether its classes are named by ``id2label`` in config.json."""
    global_tokens: NamedTokens = "first"
    """The global tokens that published checkpoints with such a head were trained with."""
    transformers_class: str = ""
    """The suffix of the class of `transformers` with this head alone."""
    targets: Targets | None = None
    """What fine-tuning learns it from; None if labeled records do not train it."""
    term: str = ""
    """The name of its loss in figures."""
    command: str | None = None
    """The command, and method of a model, that uses it."""
    does: str = ""
    """What a model with such a head can do, as errors say it; "" for a head that no task reads."""
    served: str | None = None
    """The name of the task in a server."""
    peft_task: str | None = None
    """The name of its task in adapters of `peft`, which has none for some roles."""


ROLES: Mapping[str, Role] = {
    "masked": Role(
        "masked language modeling", global_tokens="none", transformers_class="ForMaskedLM", command="fill"
    ),
    "enhanced": Role("masked language modeling", transformers_class="ForMaskedLM", command="fill"),
    "replaced": Role("replaced token detection", classes=1, transformers_class="ForPreTraining"),
    "next_sentence": Role(
        "next sentence prediction",
        classes=2,
        transformers_class="ForNextSentencePrediction",
        command="follows",
        does="judge whether one text follows another",
        served="follows",
    ),
    "sentence_order": Role(
        "sentence order prediction",
        classes=2,
        command="follows",
        does="judge whether one text follows another",
        served="follows",
    ),
    "sequence": Role(
        "sequence classification",
        has_labels=True,
        transformers_class="ForSequenceClassification",
        targets="texts",
        term="classification",
        command="classify",
        does="classify texts",
        peft_task="SEQ_CLS",
    ),
    "tokens": Role(
        "token classification",
        has_labels=True,
        global_tokens="none",
        transformers_class="ForTokenClassification",
        targets="words",
        term="tagging",
        command="tag",
        does="label words",
        served="entities",
        peft_task="TOKEN_CLS",
    ),
    "span": Role(
        "extractive question answering",
        classes=2,
        global_tokens="question",
        transformers_class="ForQuestionAnswering",
        targets="spans",
        term="answering",
        command="answer",
        does="answer questions",
        served="answers",
        peft_task="QUESTION_ANS",
    ),
    "choice": Role(
        "multiple choice",
        classes=1,
        global_tokens="second",
        transformers_class="ForMultipleChoice",
        targets="choices",
        term="multiple_choice",
        command="choose",
        does="choose between texts",
        served="choices",
    ),
    "prune": Role(
        "context pruning",
        classes=2,
        global_tokens="question",
        command="prune",
        does="prune documents",
        served="prune",
    ),
}
"""The role of every name in `RoleName`."""

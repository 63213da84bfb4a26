"""What the heads of a model predict for a text that was read, and a step of pretraining on it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from unmask.encoder.heads import ClassificationHead
from unmask.errors import InvalidRequest
from unmask.explorer.routes.route import AppContext, Route, of_text
from unmask.explorer.sessions.texts import TextSession
from unmask.explorer.wire.page_request import PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, cannot, json_answer
from unmask.http.worker import Watch
from unmask.interpret import AttentionView
from unmask.interpret.activation_cache import ActivationCache
from unmask.spec import Classifier, role_of
from unmask.spec.heads import is_per_token
from unmask.tasks.answer import answer
from unmask.tasks.classify import classify, label_names, problem_of
from unmask.tasks.fill import Prediction
from unmask.tasks.logits import WindowedLogits
from unmask.tasks.tag import Tagging, tag, words_of
from unmask.text import Encoding, Tokenizer
from unmask.text.tokenizer import spellings
from unmask.text.windows import windows
from unmask.training.view.steps import mask_epochs, masked_view, replaced_by_reader, sentence_pair_view
from unmask.training.view.values import Corruption, EpochTargets

TaskKind = Literal["classes", "labels", "answers"]


ANSWERS = 3
"""Answers that are shown, the most probable first."""
NEEDS_PAIR = (
    "this model answers questions about a text: read the question, and the text as the second one, to see "
    "its answer"
)
NAMES = {"next_sentence": ("follows", "does not follow"), "sentence_order": ("in order", "swapped")}
"""The meaning of the classes of heads that have no labels."""


@dataclass(frozen=True)
class PredictedClass:
    """One class of the text. ``id`` is its number in the head; ``score`` its probability, or a value.

    ``applies``: whether the model predicts it.
    """

    label: str
    id: int
    score: float
    applies: bool


@dataclass(frozen=True)
class PredictedSpan:
    """A word, an entity or an answer: its tokens ``first`` to ``stop``, and its probability.

    ``in_pair``: it is in the second text. The prediction rests on the logits of ``classes`` at ``tokens``:
    the first token of each word, or the first and the last token of an answer.
    """

    label: str
    text: str
    first: int
    stop: int
    in_pair: bool
    score: float
    tokens: tuple[int, ...]
    classes: tuple[int, ...]


@dataclass(frozen=True)
class TaskPrediction:
    """What a head of the model predicts for a text.

    ``kind``: ``classes`` of the text, ``labels`` of its words, or ``answers`` in the second text to the first
    one. ``value``: the classes are numbers of a regression or a score, not probabilities. ``spans`` are
    entities where the labels are of entities, else words. ``note`` says why there is no prediction, or what a
    reader must know of it. ``role`` names the head.
    """

    kind: TaskKind
    role: str
    value: bool
    classes: tuple[PredictedClass, ...]
    spans: tuple[PredictedSpan, ...]
    note: str | None


@dataclass(frozen=True)
class TaskPredictionRequest(PageRequest):
    """What the model's first head that is not for masked words predicts for a text."""

    path = "texts/{text}/prediction"
    answer = TaskPrediction
    needs = "can_classify"

    text: str


def classifiers(cache: ActivationCache) -> dict[str, Classifier]:
    """The classifiers of the encoder by role, the one that is asked first in front."""
    heads = cache.encoder.heads
    specs = {role: head.spec for role, head in heads.items() if isinstance(head, ClassificationHead)}
    return dict(sorted(specs.items(), key=lambda item: item[0] not in ("sequence", "tokens", "span")))


def class_names(head: Classifier) -> tuple[str, ...]:
    """The names of the classes of a classifier."""
    return NAMES.get(head.role, label_names(head))


def head_logits(cache: ActivationCache, role: str) -> NDArray[np.float32]:
    """The logits of a classifier for the cached text: (C,), or (N, C) of one for tokens."""
    with torch.no_grad():
        logits = cache.encoder.logits(role, cache.final_ND, cache.batch.layout)
    array: NDArray[np.float32] = logits.float().cpu().numpy()
    by_token = is_per_token(classifiers(cache)[role])
    return array if by_token else array[0]


def class_scores(cache: ActivationCache, encoding: Encoding, role: str) -> Mapping[str, float]:
    """The score of each label of a classifier of texts, see `Classification.scores`."""
    windowed = WindowedLogits(encoding, windows(encoding, None), [head_logits(cache, role)])
    (classification,) = classify(classifiers(cache)[role], [windowed])
    return classification.scores


def prediction_of(cache: ActivationCache, encoding: Encoding, name: str) -> TaskPrediction:
    """The prediction of the first classifier.

    Args:
        cache: the text, read whole.
        encoding: its tokens.
        name: what the model is called.

    Raises:
        InvalidRequest: the model has no classifier.
    """
    for role, head in classifiers(cache).items():
        windowed = WindowedLogits(encoding, windows(encoding, None), [head_logits(cache, role)])
        match role:
            case "tokens":
                return _labels(head, windowed)
            case "span":
                return _answers(head, windowed)
            case "replaced":
                return _replaced(windowed)
            case _:
                pass  # a class of a text
        if not is_per_token(head):
            return _classes(head, windowed)
    raise InvalidRequest(f"{name} has no classifier of texts, words or answers; ask another model")


def _classes(head: Classifier, windowed: WindowedLogits) -> TaskPrediction:
    (classification,) = classify(head, [windowed])
    value = problem_of(head) == "regression"
    names = class_names(head)
    applying = set(classification.labels)
    classes = tuple(
        PredictedClass(name, id, float(score), not value and label in applying)
        for id, (name, (label, score)) in enumerate(zip(names, classification.scores.items(), strict=True))
    )
    note = None
    if head.role in NAMES and windowed.encoding.pair is None:
        note = "this head judges two texts; add a second text to ask it something that it was trained for"
    return TaskPrediction("classes", head.role, value, classes, (), note)


def _labels(head: Classifier, windowed: WindowedLogits) -> TaskPrediction:
    (tagging,) = tag(head, [windowed])
    encoding = windowed.encoding
    _, words_N = words_of(encoding)
    tokens = [np.flatnonzero(words_N == word) for word in range(len(tagging.words))]
    ids = {label: id for id, label in enumerate(label_names(head))}
    spans = []
    for label, text, score, first, end in _groups(tagging):
        words = tagging.words[first:end]
        # A word's label is that of its first token.
        classes = tuple(ids[word.label] for word in words)
        spans.append(
            PredictedSpan(
                label,
                text,
                int(tokens[first][0]),
                int(tokens[end - 1][-1]) + 1,
                in_pair=False,
                score=score,
                tokens=tuple(int(places[0]) for places in tokens[first:end]),
                classes=classes,
            )
        )
    note = None
    if encoding.pair is not None:
        note = "only the words of the first text are labeled"
    elif not spans:
        note = "the model finds no name in this text"
    return TaskPrediction("labels", head.role, False, (), tuple(spans), note)


def _groups(tagging: Tagging) -> list[tuple[str, str, float, int, int]]:
    """Entities, or words where labels are not of entities: label, text, probability, words from and to."""
    if not tagging.has_entities:
        return [(word.label, word.text, word.score, at, at + 1) for at, word in enumerate(tagging.words)]
    starts = {word.start: at for at, word in enumerate(tagging.words)}
    ends = {word.end: at + 1 for at, word in enumerate(tagging.words)}
    return [
        (entity.label, entity.text, entity.score, starts[entity.start], ends[entity.end])
        for entity in tagging.entities
    ]


def _replaced(windowed: WindowedLogits) -> TaskPrediction:
    """The tokens that a discriminator takes for replaced ones (Clark et al. 2020)."""
    encoding = windowed.encoding
    p_N = 1 / (1 + np.exp(-windowed.logits[0][:, 0].astype(np.float64)))
    spans = tuple(
        PredictedSpan(
            "replaced",
            encoding.surface(token),
            token,
            token + 1,
            in_pair=bool(encoding.sequence_ids[token] == 1),
            score=float(p_N[token]),
            tokens=(token,),
            classes=(0,),
        )
        for token in np.flatnonzero((p_N > 0.5) & ~encoding.special).tolist()
    )
    note = None if spans else "the model takes no token for a replaced one"
    return TaskPrediction("labels", "replaced", False, (), spans, note)


def _answers(head: Classifier, windowed: WindowedLogits) -> TaskPrediction:
    encoding = windowed.encoding
    if encoding.pair is None:
        return TaskPrediction("answers", head.role, False, (), (), NEEDS_PAIR)
    answers = answer([windowed], top_k=ANSWERS)
    offsets, mine = encoding.offsets, np.flatnonzero(encoding.sequence_ids == 1)
    spans = []
    for span in answers.answers:
        first = int(mine[offsets[mine, 0] == span.start][0])
        last = int(mine[offsets[mine, 1] == span.end][-1])
        spans.append(
            PredictedSpan(
                "answer",
                span.text,
                first,
                last + 1,
                in_pair=True,
                score=span.score,
                tokens=(first, last),
                classes=(0, 1),
            )
        )
    return TaskPrediction("answers", head.role, False, (), tuple(spans), None)


def need_classifier(session: TextSession) -> None:
    """Refuse with a sentence unless the model has a classifier."""
    if not any(isinstance(head, Classifier) for head in session.model.spec.heads):
        raise cannot(f"{session.place.name} has no classifier; ask for another target")


def prediction(session: TextSession, request: Request) -> Answer:
    """``GET texts/{id}/prediction``."""
    need_classifier(session)

    def predict(view: AttentionView) -> TaskPrediction:
        return prediction_of(view.cache, session.encoding, session.place.name)

    return json_answer(session.ask(predict))


EPOCHS = 10
MOST_EPOCHS = 1000


@dataclass(frozen=True)
class StepToken:
    """A token that was corrupted or judged. ``piece`` is what the model reads.

    ``loss``: in nats; of a target of masked language modeling, or of a detector's judgement. ``baseline``:
    the loss by word frequency alone. ``probability``: of the original token, or that the token is replaced.
    """

    token: int
    piece: str
    corruption: Corruption
    loss: float
    probability: float
    baseline: float | None
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class PairScores:
    """The probability that one text follows the other: as given, swapped, and for unrelated sentences."""

    task: str
    given: float
    swapped: float
    unrelated: float


@dataclass(frozen=True)
class TrainingStep:
    """One step of pretraining on a text.

    ``head``: ``masked``, ``replaced``, or None where the model has neither. ``tokens``: the targets, or all
    tokens that a detector judges. ``loss`` is their mean, ``baseline`` that of a model without context (by
    word frequency; one probability for all tokens), ``uniform`` that of one that knows nothing. ``note``: why
    there are no ``rows``.
    """

    epoch: int
    head: str | None
    tokens: tuple[StepToken, ...]
    loss: float | None
    baseline: float | None
    uniform: float | None
    pair: PairScores | None
    rows: tuple[EpochTargets, ...]
    note: str | None


@dataclass(frozen=True)
class TrainingStepRequest(PageRequest):
    """A step of pretraining on a text. ``before``: the text in which the reader replaced words."""

    path = "texts/{text}/training"
    answer = TrainingStep
    saved_in = ("words",)

    text: str
    epoch: int = 1
    before: str | None = None


def step(context: AppContext, request: Request) -> Answer:
    """``GET texts/{id}/training?epoch=&before=``."""
    session = context.texts.get(request.parts[0])
    epoch = request.number("epoch", 1, 1, MOST_EPOCHS)
    before = context.texts.get(request.query["before"]) if "before" in request.query else None

    def compute(view: AttentionView, watch: Watch) -> TrainingStep:
        return _step(session, epoch, None if before is None else before.encoding)

    return json_answer(session.analyse(("training", epoch, before and before.id), compute))


def _step(session: TextSession, epoch: int, before: Encoding | None) -> TrainingStep:
    model, name = session.model, session.place.name
    roles = {role_of(head) for head in model.spec.heads}
    head: str | None = None
    tokens: tuple[StepToken, ...] = ()
    loss = baseline = uniform = None
    rows: tuple[EpochTargets, ...] = ()
    pair = note = None
    encoding = session.encoding
    try:
        targets = mask_epochs(model.tokenizer, encoding, epochs=EPOCHS)
        rows = (targets.static, targets.dynamic)
        if roles & {"masked", "enhanced"} and not model.spec.causal:
            head = "masked"
            masked = masked_view(model.engine, model.tokenizer, encoding, epoch=epoch, model=name)
            tokens = tuple(
                StepToken(
                    token=token.token,
                    piece=_written(model.tokenizer, token.corrupted_id),
                    corruption=token.corruption,
                    loss=token.loss or 0.0,
                    probability=token.probability or 0.0,
                    baseline=token.frequency_loss,
                    predictions=token.predictions or (),
                )
                for token in masked.targets
            )
            loss, baseline, uniform = masked.loss, masked.frequency_loss, masked.uniform_loss
        elif "replaced" in roles:
            head = "replaced"
            original = encoding if before is None else before
            judged = replaced_by_reader(model.engine, model.tokenizer, original, encoding, model=name)
            tokens = tuple(
                StepToken(
                    token=token.token,
                    piece=_written(model.tokenizer, token.corrupted_id),
                    corruption="random" if token.replaced else "none",
                    loss=token.loss,
                    probability=token.probability,
                    baseline=None,
                    predictions=(),
                )
                for token in judged.tokens
            )
            loss, baseline = judged.loss, judged.constant_loss
        if encoding.pair is not None and roles & {"next_sentence", "sentence_order"}:
            both = model.tokenizer.encode_batch([encoding.text, encoding.pair])
            scored = sentence_pair_view(model.engine, model.tokenizer, both[0], both[1], model=name)
            pair = PairScores(
                scored.task,
                scored.given.probability,
                scored.swapped.probability,
                scored.unrelated_probability,
            )
    except InvalidRequest as error:
        note = str(error)
    return TrainingStep(epoch, head, tokens, loss, baseline, uniform, pair, rows, note)


def _written(tokenizer: Tokenizer, id: int) -> str:
    """A piece without the marks of its tokenizer."""
    piece, text = spellings(tokenizer, id)
    return text.strip() or piece


ROUTES = (
    Route.get(TaskPredictionRequest, of_text(prediction)),
    Route.get(TrainingStepRequest, step),
)

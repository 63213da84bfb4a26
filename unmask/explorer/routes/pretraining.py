"""A step of pretraining on the text: what is corrupted, what the model's heads say, masks by epoch."""

from dataclasses import dataclass

from unmask.errors import InvalidRequest
from unmask.explorer.routes.route import AppContext, Route
from unmask.explorer.sessions.text_session import TextSession
from unmask.explorer.wire.page_request import PageRequest
from unmask.http.requests import Request
from unmask.http.responses import Answer, json_answer
from unmask.http.worker import Watch
from unmask.interpret import AttentionView
from unmask.spec import role_of
from unmask.tasks.fill import Prediction
from unmask.text import Encoding, Tokenizer
from unmask.text.masking import spellings
from unmask.training.view.masked import mask_epochs, masked_view
from unmask.training.view.pairs import sentence_pair_view
from unmask.training.view.replaced import replaced_by_reader
from unmask.training.view.values import Corruption, EpochTargets

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
    reading = context.texts.get(request.parts[0])
    epoch = request.number("epoch", 1, 1, MOST_EPOCHS)
    before = context.texts.get(request.query["before"]) if "before" in request.query else None

    def compute(view: AttentionView, watch: Watch) -> TrainingStep:
        return _step(reading, epoch, None if before is None else before.encoding)

    return json_answer(reading.analyse(("training", epoch, before and before.id), compute))


def _step(reading: TextSession, epoch: int, before: Encoding | None) -> TrainingStep:
    model, name = reading.model, reading.place.name
    roles = {role_of(head) for head in model.spec.heads}
    head: str | None = None
    tokens: tuple[StepToken, ...] = ()
    loss = baseline = uniform = None
    rows: tuple[EpochTargets, ...] = ()
    pair = note = None
    encoding = reading.encoding
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


ROUTES = (Route.get(TrainingStepRequest, step),)

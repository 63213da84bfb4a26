"""Targets of attribution and ablation, scalar outputs of an encoder, and layers run again to explain them."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import get_ident
from typing import Any, Literal, NamedTuple, assert_never

import torch
from torch import Tensor
from torch.nn import Module

from unmask.base.arguments import one_of, token_of
from unmask.encoder.decoder import decode_states, predicts_by_decoder, word_role
from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import ClassificationHead, embed
from unmask.encoder.hooks import Hook, HookPoint
from unmask.encoder.layers import Plan
from unmask.engines.inference.linear import PackedLinear, QuantizedLinear
from unmask.errors import InvalidRequest, NonFiniteResult
from unmask.interpret.activation_cache import ActivationCache
from unmask.interpret.watch import Watch, unwatched
from unmask.spec import PooledVector, PoolingMode

Scale = Literal["logit", "log-probability"]
"""How words are scored: by the number their head gives, or by its logarithm after the softmax, in nats."""


@dataclass(frozen=True)
class Word:
    """A word of the vocabulary, as predicted by the MLM head at a token.

    A prediction at a token that is not masked is not informative; see `unmask.text.masking.masked`.
    """

    token: int
    id: int


@dataclass(frozen=True)
class Class:
    """A class of one of the encoder's classifiers."""

    role: str
    """The classifier, as in `Encoder.heads`."""
    index: int
    token: int | None = None
    """The token, for classifiers of tokens alone."""


@dataclass(frozen=True)
class TokenClasses:
    """Classes of several tokens, whose logits are added: the labels of a name's words, or the start and the
    end of an answer."""

    role: str
    """A classifier of tokens, as in `Encoder.heads`."""
    tokens: tuple[int, ...]
    classes: tuple[int, ...]
    """The class of each token."""

    def __post_init__(self) -> None:
        if not self.tokens or len(self.tokens) != len(self.classes):
            raise InvalidRequest(
                f"{len(self.tokens)} tokens and {len(self.classes)} classes were given; give a class for "
                "each of at least one token"
            )


@dataclass(frozen=True)
class Embedding:
    """The text's embedding, or one token's last state.

    As a number to find causes of: its length along its own direction, as it is. As something that changes:
    its cosine with what it was. With another vector given, both are its cosine with that vector.
    """

    pooling: tuple[PoolingMode, ...] = ("mean",)
    token: int | None = None
    """Instead of pooling."""
    toward: tuple[float, ...] | None = None
    """A vector to compare with, such as that of a query, (E,)."""


AttributionTarget = Word | Class | TokenClasses | Embedding


class TargetScore:
    """The number of a target, from the states that its head reads.

    Args:
        cache: the activation cache of the unchanged text.
        target: what is asked.
        encoder: whose heads are used; None uses the cache's encoder.

    Raises:
        InvalidRequest: there is no such head, token, word or class.
    """

    def __init__(
        self, cache: ActivationCache, target: AttributionTarget, encoder: Encoder | None = None
    ) -> None:
        self.target = target
        self.cache = cache
        self.encoder = encoder or cache.encoder
        self.by_decoder = False
        """Whether the target is made by the enhanced mask decoder, from the states before the last layer."""
        self._role = ""
        match target:
            case Word():
                self._role = word_role(self.encoder)
                self.by_decoder = predicts_by_decoder(self.encoder, self._role)
                self._check_token(target.token)
                words = self.encoder.spec.embedding.vocabulary
                one_of("word", target.id, words, "this vocabulary has words")
            case Class():
                self._check_class(target)
            case TokenClasses():
                for token, index in zip(target.tokens, target.classes, strict=True):
                    self._check_class(Class(target.role, index, token))
            case Embedding():
                if target.token is not None:
                    self._check_token(target.token)
                if target.toward is not None and len(target.toward) != len(self._pooled(cache.final_ND)):
                    raise InvalidRequest(
                        f"toward has {len(target.toward)} numbers and the embedding "
                        f"{len(self._pooled(cache.final_ND))}; give a vector of the same model"
                    )
            case _:
                assert_never(target)

    @property
    def unit(self) -> str:
        """The unit of `of`."""
        match self.target:
            case Word():
                return "log-probability in nats"
            case TokenClasses(tokens=tokens) if len(tokens) > 1:
                return "sum of logits"
            case Class() | TokenClasses():
                return "logit"
            case Embedding():
                return "cosine"
            case _:
                assert_never(self.target)

    def unit_of_value(self, scale: Scale) -> str:
        """The unit of `value`, whose gradient explains the target."""
        match self.target:
            case Word():
                return "logit" if scale == "logit" else self.unit
            case Embedding(toward=None):
                return "length"
            case Class() | TokenClasses() | Embedding():
                return self.unit
            case _:
                assert_never(self.target)

    def of(self, x_ND: Tensor, scale: Scale = "log-probability") -> float:
        """The value; for embeddings, their cosine with the cached embedding."""
        with torch.no_grad():
            if isinstance(self.target, Embedding):
                e_E, before_E = self._embedding(x_ND), self._before()
                return float(torch.nn.functional.cosine_similarity(e_E, before_E, dim=0))
            return float(self.value(x_ND, scale))

    def value(self, x_ND: Tensor, scale: Scale, hook: Hook | None = None) -> Tensor:
        """The value with gradients, a scalar; for embeddings, their projection on the cached embedding.

        ``x_ND``: states after the last layer, or before it where the decoder makes the target (`by_decoder`),
        whose passes call ``hook``.
        """
        layout, target = self.cache.batch.layout, self.target
        match target:
            case Word():
                logits_V = self.word_logits(x_ND, target.token, hook)
                logits_V = logits_V if scale == "logit" else logits_V.log_softmax(-1)
                word: Tensor = logits_V[target.id]
                return word
            case Class():
                final_ND = self.encoder.final_norm(x_ND)
                logits = self.encoder.logits(target.role, final_ND, layout)
                logit: Tensor = logits[target.token or 0, target.index]
                return logit.to(torch.promote_types(logit.dtype, torch.float32))
            case TokenClasses():
                final_ND = self.encoder.final_norm(x_ND)
                logits = self.encoder.logits(target.role, final_ND, layout)
                chosen = logits[list(target.tokens), list(target.classes)]
                total: Tensor = chosen.to(torch.promote_types(chosen.dtype, torch.float32)).sum()
                return total
            case Embedding():
                e_E, before_E = self._embedding(x_ND), self._before()
                if target.toward is not None:
                    return torch.nn.functional.cosine_similarity(e_E, before_E, dim=0)
                length: Tensor = e_E @ (before_E / before_E.norm())
                return length
            case _:
                assert_never(target)

    def start(self) -> Tensor:
        """The weight of each last state in the target, (N,), float64: 1 at a token, or a mean."""
        match target := self.target:
            case TokenClasses():
                reads = [self._predictor(target.role).spec.reads]
                return torch.stack([self._start(reads, token) for token in target.tokens]).mean(0)
            case Class():
                return self._start([self._predictor(target.role).spec.reads], target.token or 0)
            case Embedding(token=None):
                return self._start(target.pooling, 0)
            case Word() | Embedding():
                return self._start(["tokens"], target.token or 0)
            case _:
                assert_never(target)

    def _start(self, reads: Sequence[str], token: int) -> Tensor:
        length = len(self.cache)
        weights_N = torch.zeros(length, dtype=torch.float64)
        for mode in reads:
            if mode in ("first", "cls", "pooler", "tokens_and_first"):
                weights_N[0] += 1 / len(reads)
            if mode in ("tokens", "tokens_and_first"):
                weights_N[token] += 1
            if mode not in ("first", "cls", "pooler", "tokens", "tokens_and_first"):
                weights_N += 1 / length / len(reads)
        return weights_N

    def word_logits(self, x_ND: Tensor, token: int, hook: Hook | None = None) -> Tensor:
        """Of a `Word`: logits of all words at a token, (V,), float32 at least. ``x_ND`` is as in `value`."""
        layout = self.cache.batch.layout
        if self.by_decoder:
            selected_M = torch.tensor([token], device=x_ND.device)
            state_MD = decode_states(self.encoder, x_ND, layout, selected_M, hook=hook)
        else:
            state_MD = self.encoder.final_norm(x_ND[token : token + 1])
        logits_V: Tensor = self.encoder.logits(self._role, state_MD, layout)[0]
        return logits_V.to(torch.promote_types(logits_V.dtype, torch.float32))

    def _before(self) -> Tensor:
        """The vector that the embedding is compared with."""
        pooled_E = self._pooled(self.cache.final_ND)
        if isinstance(self.target, Embedding) and self.target.toward is not None:
            return torch.tensor(self.target.toward).to(pooled_E)
        return pooled_E

    def _embedding(self, x_ND: Tensor) -> Tensor:
        return self._pooled(self.encoder.final_norm(x_ND))

    def _pooled(self, final_ND: Tensor) -> Tensor:
        """The embedding before normalization, (E,), float32 at least."""
        assert isinstance(self.target, Embedding)
        if self.target.token is not None:
            state_D = final_ND[self.target.token]
            return state_D.to(torch.promote_types(state_D.dtype, torch.float32))
        head = PooledVector(self.target.pooling)
        return embed(final_ND, self.cache.batch.layout, head)[0]

    def _predictor(self, role: str) -> ClassificationHead:
        predictor = self.encoder.heads[role]
        assert isinstance(predictor, ClassificationHead)
        return predictor

    def _check_class(self, target: Class) -> None:
        heads = self.encoder.heads
        roles = [role for role in heads if isinstance(heads[role], ClassificationHead)]
        if target.role not in roles:
            has = ", ".join(roles) or "none"
            raise InvalidRequest(f"the encoder has no classifier {target.role!r}; it has: {has}")
        spec = self._predictor(target.role).spec
        one_of("class", target.index, spec.classes, f"the classifier {target.role} has classes")
        by_token = spec.reads in ("tokens", "tokens_and_first")
        if by_token != (target.token is not None):
            remedy = "say which" if by_token else "leave the token out"
            which = "each token" if by_token else "the whole text"
            raise InvalidRequest(f"the classifier {target.role} is for {which}; {remedy}")
        if target.token is not None:
            self._check_token(target.token)

    def _check_token(self, token: int) -> None:
        token_of(len(self.cache), token)


Change = Callable[[Tensor], Tensor]
"""Mixed values of all heads side by side, (N, H K), to what is to go on in their place."""


class Mixed(NamedTuple):
    """The mixed values of the heads of a layer, and the gradient of a score by them, (N, H, K) each.

    Of the enhanced mask decoder it is what one token got in each pass of the last layer, (passes, H, K).
    """

    layer: int
    o_NHK: Tensor
    gradient_NHK: Tensor
    decoder_q_NHK: Tensor | None = None
    """The token's queries in the passes of the decoder; None for a layer."""


class InterventionRun:
    """One encoder and the layout of one activation cache.

    Args:
        cache: the activation cache of the text.
        encoder: instead of the cache's encoder, the same weights in modules that support gradients.
    """

    def __init__(self, cache: ActivationCache, encoder: Encoder | None = None) -> None:
        self.cache = cache
        self.encoder = encoder or cache.encoder
        self.layers = len(self.encoder.spec.layers)
        self._layout = cache.batch.layout
        with torch.no_grad():
            self._table_PD = None if self.encoder.distances is None else self.encoder.distances()
        self._plans: dict[bool, dict[Any, Plan]] = {False: {}, True: {}}

    def layer(self, layer: int, x_ND: Tensor, hook: Hook | None = None) -> Tensor:
        """The state after a layer, from the state before it."""
        encoder, block = self.encoder, self.encoder.block(layer)
        plans = self._plans[torch.is_grad_enabled()]
        y_ND: Tensor = block(
            x_ND, encoder.plan(block, self._layout, x_ND, self._table_PD, plans), layer, hook
        )
        if layer == 0 and encoder.convolution is not None:
            y_ND = encoder.convolution(x_ND, y_ND, self._layout)
        return y_ND

    def score(
        self, score: TargetScore, layer: int, change: Change | None = None, watch: Watch | None = None
    ) -> float:
        """A score with ``change`` made to what the heads of ``layer`` mixed; all layers below as they were.

        Where the enhanced mask decoder makes the score, a change to the last layer is one to both passes of
        the decoder, which are that layer.
        """
        last, watch = self.layers - 1, watch or unwatched
        x_ND = self.cache.states[layer]
        for at in range(layer, last if score.by_decoder else self.layers):
            with torch.no_grad(), self.changed(layer, change if at == layer else None):
                x_ND = self.layer(at, x_ND)
            watch("running layers", at + 1 - layer, self.layers - layer)
        with self.changed(layer, change if score.by_decoder and layer == last else None):
            number = score.of(x_ND)
        if not math.isfinite(number):
            raise NonFiniteResult(f"the {score.unit} is not finite; try dtype='float32'")
        return number

    def mixed(self, layer: int) -> Tensor:
        """The mixed values of the heads of a layer, (N, H, K)."""
        recorded, record = _recorder(HookPoint.MIXED)
        with torch.no_grad():
            self.layer(layer, self.cache.states[layer], record)
        return recorded[HookPoint.MIXED][0]

    @contextmanager
    def changed(self, layer: int, change: Change | None) -> Iterator[None]:
        """While it lasts, the output projection of a layer reads something else in this thread alone.

        Other threads may run the same encoder meanwhile.
        """
        if change is None:
            yield
            return
        thread = get_ident()

        def changing(_: Module, inputs: tuple[Tensor]) -> tuple[Tensor] | None:
            return (change(inputs[0]),) if get_ident() == thread else None

        hook = self.encoder.block(layer).attention.out.register_forward_pre_hook(changing)
        try:
            yield
        finally:
            hook.remove()

    def descend(self, score: TargetScore, scale: Scale, what: str, watch: Watch | None) -> Iterator[Mixed]:
        """The mixed values of each layer and their gradient, from the last layer down, one layer at a time.

        Only one layer's graph exists at once. Where the enhanced mask decoder makes the score, its passes
        come first, as the last layer, whose ordinary run has no part in the score.

        Raises:
            InvalidRequest: the encoder gives no gradients.
        """
        check_gradients(self.encoder)
        watch = watch or unwatched
        states, layers = self.cache.states, self.layers
        dtype = self.encoder.embedding.words.weight.dtype
        if score.by_decoder:
            layers -= 1
            mixed, gradient_ND = _through_decoder(score, states[layers].to(dtype), scale, layers)
            yield mixed
        else:
            gradient_ND = _gradient(score, states[-1].to(dtype), scale)
        for layer in reversed(range(layers)):
            watch(what, self.layers - 1 - layer, self.layers)
            mixed, gradient_ND = self._back(layer, states[layer].to(dtype), gradient_ND)
            yield mixed
        watch(what, self.layers, self.layers)

    def _back(self, layer: int, x_ND: Tensor, gradient_ND: Tensor) -> tuple[Mixed, Tensor]:
        """One layer forward and backward: gradients by what its heads mixed, and by its input."""
        recorded, record = _recorder(HookPoint.MIXED)
        with torch.enable_grad():
            x_ND = x_ND.detach().requires_grad_()
            y_ND = self.layer(layer, x_ND, record)
            (o_NHK,) = recorded[HookPoint.MIXED]
            below_ND, gradient_NHK = torch.autograd.grad(y_ND, [x_ND, o_NHK], gradient_ND)
        return Mixed(layer, o_NHK.detach(), gradient_NHK), below_ND


def _recorder(*places: HookPoint) -> tuple[dict[HookPoint, list[Tensor]], Hook]:
    """A hook and the tensors that it has recorded at some places."""
    recorded: dict[HookPoint, list[Tensor]] = {place: [] for place in places}

    def record(place: HookPoint, layer: int, tensor: Tensor) -> None:
        if place in recorded:
            recorded[place].append(tensor)

    return recorded, record


def _gradient(score: TargetScore, x_ND: Tensor, scale: Scale) -> Tensor:
    """Of the score by the states that its head reads."""
    with torch.enable_grad():
        x_ND = x_ND.detach().requires_grad_()
        (gradient_ND,) = torch.autograd.grad(score.value(x_ND, scale), [x_ND])
    return gradient_ND


def _through_decoder(score: TargetScore, x_ND: Tensor, scale: Scale, layer: int) -> tuple[Mixed, Tensor]:
    """The passes of the decoder, and the gradient by the states before the last layer."""
    recorded, record = _recorder(HookPoint.QUERY, HookPoint.MIXED)
    with torch.enable_grad():
        x_ND = x_ND.detach().requires_grad_()
        number = score.value(x_ND, scale, record)
        gradient_ND, *of_passes = torch.autograd.grad(number, [x_ND, *recorded[HookPoint.MIXED]])
    q_NHK, o_NHK = (torch.cat(recorded[place]).detach() for place in (HookPoint.QUERY, HookPoint.MIXED))
    return Mixed(layer, o_NHK, torch.cat(of_passes), q_NHK), gradient_ND


def check_gradients(encoder: Encoder) -> None:
    """Check that gradients can be computed through the encoder.

    Raises:
        InvalidRequest: the encoder was optimized for inference.
    """
    if any(isinstance(module, PackedLinear | QuantizedLinear) for module in encoder.modules()):
        raise InvalidRequest(
            "the encoder was rewritten for inference and gives no gradients; give the plain one beside it "
            "(encoder=model.trainable_encoder(replace=False))"
        )

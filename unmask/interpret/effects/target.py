"""Targets of attribution, ablation and patching: scalar outputs of an encoder."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, assert_never

import torch
from torch import Tensor

from unmask.base.arguments import one_of, token_of
from unmask.encoder.decoder import decode_states, predicts_by_decoder, word_role
from unmask.encoder.encoder import Encoder
from unmask.encoder.heads import ClassificationHead, embed
from unmask.encoder.hooks import Hook
from unmask.errors import InvalidRequest
from unmask.interpret.activation_cache import ActivationCache
from unmask.spec import PooledVector, PoolingMode
from unmask.spec.heads import OF_TOKENS, is_per_token
from unmask.text.batch import SequenceLayout

Scale = Literal["logit", "log-probability"]
"""How words are scored: by the number their head gives, or by its logarithm after the softmax, in nats."""


@dataclass(frozen=True)
class Word:
    """A word of the vocabulary, as predicted by the MLM head at a token.

    A prediction at a token that is not masked is not informative; see `unmask.text.tokenizer.masked`.
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


@dataclass(frozen=True, eq=False)
class StateFunction:
    """A number that is computed from the last hidden states in any differentiable way, such as the score of a
    head that is not one of the encoder's own."""

    function: Callable[[Tensor], Tensor]
    """From the states after the last layer and its norm, (copies, N, D), to the number of each copy,
    (copies,). Copies are independent of each other."""
    tokens: tuple[int, ...]
    """The tokens whose states are read; ``chefer`` starts from all of them equally."""
    unit: str = "logit"

    def __post_init__(self) -> None:
        if not self.tokens:
            raise InvalidRequest("tokens is empty; name the tokens whose states the function reads")


AttributionTarget = Word | Class | TokenClasses | Embedding | StateFunction


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
                if target.toward is not None and len(target.toward) != self._pooled(cache.final_ND).shape[1]:
                    raise InvalidRequest(
                        f"toward has {len(target.toward)} numbers and the embedding "
                        f"{self._pooled(cache.final_ND).shape[1]}; give a vector of the same model"
                    )
            case StateFunction():
                for token in target.tokens:
                    self._check_token(token)
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
            case StateFunction(unit=unit):
                return unit
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
            case Class() | TokenClasses() | Embedding() | StateFunction():
                return self.unit
            case _:
                assert_never(self.target)

    def of(self, x_ND: Tensor, scale: Scale = "log-probability") -> float:
        """The value; for embeddings, their cosine with the cached embedding."""
        with torch.no_grad():
            if isinstance(self.target, Embedding):
                e_SE, before_E = self._embedding(x_ND), self._before()
                return float(torch.nn.functional.cosine_similarity(e_SE[0], before_E, dim=0))
            return float(self.value(x_ND, scale))

    def value(self, x_ND: Tensor, scale: Scale, hook: Hook | None = None) -> Tensor:
        """`values` of the text alone, a scalar."""
        return self.values(x_ND, scale, hook)[0]

    def values(self, x_TD: Tensor, scale: Scale, hook: Hook | None = None) -> Tensor:
        """The value of each copy of the text, (copies,), with gradients; for embeddings, their projection on
        the cached embedding.

        ``x_TD``: states after the last layer, or before it where the decoder makes the target (`by_decoder`),
        whose passes call ``hook``; of one copy of the text, or of several end to end.
        """
        target, starts = self.target, self._starts(x_TD)
        match target:
            case Word():
                logits_SV = self._word_logits(x_TD, target.token, hook)
                logits_SV = logits_SV if scale == "logit" else logits_SV.log_softmax(-1)
                return logits_SV[:, target.id]
            case Class():
                logits = self._logits(target.role, x_TD)
                if target.token is not None:
                    logits = logits[starts + target.token]
                return logits[:, target.index]
            case TokenClasses():
                logits = self._logits(target.role, x_TD)
                places = [starts + token for token in target.tokens]
                chosen = [logits[at, index] for at, index in zip(places, target.classes, strict=True)]
                return torch.stack(chosen).sum(0)
            case StateFunction():
                states_TD = self.encoder.finished(x_TD)
                return target.function(states_TD.view(-1, len(self.cache), states_TD.shape[-1]))
            case Embedding():
                e_SE, before_E = self._embedding(x_TD), self._before()
                if target.toward is not None:
                    return torch.nn.functional.cosine_similarity(e_SE, before_E[None], dim=1)
                lengths_S: Tensor = e_SE @ (before_E / before_E.norm())
                return lengths_S
            case _:
                assert_never(target)

    def _starts(self, x_TD: Tensor) -> Tensor:
        """The first token of each copy."""
        return torch.arange(0, len(x_TD), len(self.cache), device=x_TD.device)

    def _layout(self, x_TD: Tensor) -> SequenceLayout:
        return self.cache.batch.layout.repeated(len(x_TD) // len(self.cache))

    def _logits(self, role: str, x_TD: Tensor) -> Tensor:
        """Logits of a classifier, float32 at least."""
        logits: Tensor = self.encoder.logits(role, self.encoder.finished(x_TD), self._layout(x_TD))
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def start(self) -> Tensor:
        """The weight of each last state in the target, (N,), float64: 1 at a token, or a mean."""
        match target := self.target:
            case TokenClasses():
                reads = [self._predictor(target.role).spec.reads]
                return torch.stack([self._start(reads, token) for token in target.tokens]).mean(0)
            case StateFunction():
                return torch.stack([self._start(["tokens"], token) for token in target.tokens]).mean(0)
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
            if mode in OF_TOKENS:
                weights_N[token] += 1
            if mode == "last":
                weights_N[-1] += 1 / len(reads)
            if mode not in ("first", "last", "cls", "pooler", *OF_TOKENS):
                weights_N += 1 / length / len(reads)
        return weights_N

    def word_logits(self, x_ND: Tensor, token: int, hook: Hook | None = None) -> Tensor:
        """Of a `Word`: logits of all words at a token, (V,), float32 at least. ``x_ND`` is as in `values`."""
        return self._word_logits(x_ND, token, hook)[0]

    def _word_logits(self, x_TD: Tensor, token: int, hook: Hook | None) -> Tensor:
        layout, selected_S = self._layout(x_TD), self._starts(x_TD) + token
        if self.by_decoder:
            states_SD = decode_states(self.encoder, x_TD, layout, selected_S, hook=hook)
        else:
            states_SD = self.encoder.finished(x_TD[selected_S])
        logits_SV: Tensor = self.encoder.logits(self._role, states_SD, layout)
        return logits_SV.to(torch.promote_types(logits_SV.dtype, torch.float32))

    def _before(self) -> Tensor:
        """The vector that the embedding is compared with."""
        pooled_E = self.embedding()
        if isinstance(self.target, Embedding) and self.target.toward is not None:
            return torch.tensor(self.target.toward, dtype=pooled_E.dtype, device=pooled_E.device)
        return pooled_E

    def embedding(self) -> Tensor:
        """Of an `Embedding`: that of the cached text, before normalization, (E,), float32 at least."""
        return self._pooled(self.cache.final_ND)[0]

    def _embedding(self, x_TD: Tensor) -> Tensor:
        return self._pooled(self.encoder.finished(x_TD))

    def _pooled(self, final_TD: Tensor) -> Tensor:
        """The embedding of each copy before normalization, (copies, E), float32 at least."""
        assert isinstance(self.target, Embedding)
        if self.target.token is not None:
            states_SD = final_TD[self._starts(final_TD) + self.target.token]
            return states_SD.to(torch.promote_types(states_SD.dtype, torch.float32))
        return embed(final_TD, self._layout(final_TD), PooledVector(self.target.pooling))

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
        by_token = is_per_token(spec)
        if by_token != (target.token is not None):
            remedy = "say which" if by_token else "leave the token out"
            which = "each token" if by_token else "the whole text"
            raise InvalidRequest(f"the classifier {target.role} is for {which}; {remedy}")
        if target.token is not None:
            self._check_token(target.token)

    def _check_token(self, token: int) -> None:
        token_of(len(self.cache), token)

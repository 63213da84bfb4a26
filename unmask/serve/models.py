"""The models of a server: what each can do, and the work that its passes do.

Axes: Q vectors of a query.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from unmask.engines.engine import Engine
from unmask.engines.native.engine import NativeEngine
from unmask.errors import InvalidRequest
from unmask.http.responses import Refused
from unmask.models.load import Model
from unmask.serve.errors import BadField
from unmask.serve.fields import Inputs
from unmask.serve.ids import encodings_of_ids
from unmask.serve.scheduler import Limits, Part, Work, check_fits
from unmask.spec import ROLES, Classifier, MultiVector, PairScore, PooledVector, SparseVector, TextKind
from unmask.spec.encoder import masked_lm_role
from unmask.spec.global_tokens import has_global_tokens, pack
from unmask.tasks import classify, embed, late_interaction, multi_vectors, pair_scores, sparse_vectors
from unmask.tasks.classify import classifier_of
from unmask.tasks.late_interaction import Matches
from unmask.tasks.multi_vectors import TokenVectors
from unmask.tasks.pair_scores import activated
from unmask.tasks.prompts import chosen_prompt
from unmask.tasks.reader import Reader, Ready, several
from unmask.tasks.sparse_vectors import WordWeights
from unmask.tasks.values import LongTexts
from unmask.text import Encoding, Truncation
from unmask.text.tokenizer import numbered

if TYPE_CHECKING:
    from unmask.engines.routed import RoutedEngine

Name = Callable[[int], str]

COUNTED_CHARACTERS = 100_000
"""How much of a text is counted at a time."""


def a_text(index: int) -> str:
    """How errors of a pass name a text: its texts belong to several requests."""
    return "a text"


_A_TEXT = Inputs(["a text"], None, True)


def _serves(model: Model, task: str) -> bool:
    """Whether it has a classifier whose role serves a task, with the classes of the role; or, for entities, a
    head for labels that are named with the text.
    """
    if task == ROLES["tokens"].served and model.reader.checkpoint.label_head is not None:
        return True
    return any(
        isinstance(head, Classifier)
        and ROLES[head.role].served == task
        and ROLES[head.role].classes in (None, head.classes)
        for head in model.spec.heads
    )


def _classifies(model: Model) -> bool:
    """Whether it has a classifier of texts whose number is not the score of a pair."""
    roles = [head.role for head in model.spec.heads if isinstance(head, Classifier)]
    return "sequence" in roles and not _scores_pairs(model)


def _scores_pairs(model: Model) -> bool:
    head = model.checkpoint.head
    return isinstance(head, PairScore) and head.labels == 1


def _gives_many_vectors(model: Model) -> bool:
    return isinstance(model.checkpoint.head, MultiVector)


def _predicts_words(model: Model) -> bool:
    """Whether it has a head for masked words, and its tokenizer a mask."""
    try:
        masked_lm_role(model.spec, model.name)
    except InvalidRequest:
        return False
    return model.tokenizer.mask_id is not None


class Relevance(NamedTuple):
    """The relevance of each text for a query."""

    raw: list[float]
    """By which answers are ordered: logits, since scores near 1 are equal; or sums of late interaction."""
    shown: list[float]
    """Sigmoids of the logits; of late interaction the mean share of a query's vector, a cosine where vectors
    have length 1."""


def _of_logits(logits: NDArray[np.float32]) -> Relevance:
    return Relevance(logits.tolist(), activated(logits, "sigmoid").tolist())


def _of_matches(matches: Sequence[Matches]) -> Relevance:
    sums = [float(match.shares_Q.astype(np.float64).sum()) for match in matches]
    return Relevance(sums, [total / len(match.shares_Q) for total, match in zip(sums, matches, strict=True)])


def _finished(ready: Ready[Any], further: Callable[[Any], Relevance]) -> Ready[Relevance]:
    """A task whose result is that of another one, read as relevance."""
    return replace(ready, finish=lambda results: further(ready.finish(results)))


@dataclass(frozen=True)
class Task:
    """What some models can do: the tasks that routes name."""

    ability: str
    """The ability of such a model as messages state it: "embeds texts"."""
    can: Callable[[Model], bool]
    warm: "Callable[[ServedModel], Ready[Any]] | None" = None
    """The task on one text, so that the first request finds everything compiled and in memory."""


TASKS: Mapping[str, Task] = {
    "embed": Task(
        "embeds texts",
        lambda model: isinstance(model.checkpoint.head, PooledVector),
        lambda served: served.embed(_A_TEXT, truncation="end", name=a_text),
    ),
    "rerank": Task(
        "scores pairs of a query and a text",
        lambda model: _scores_pairs(model) or _gives_many_vectors(model),
        lambda served: served.rerank("a text", ["a text"], truncation="end", pair_name=a_text),
    ),
    "predict": Task(
        "predicts labels of texts",
        _classifies,
        lambda served: classify.prepare(served.texts, "a text"),
    ),
    "classify": Task(
        "classifies texts, by its own labels or by those that a request names",
        lambda model: _classifies(model) or model.checkpoint.class_head is not None,
    ),
    "multi_vectors": Task("gives vectors of tokens for late interaction", _gives_many_vectors),
    "embed_sparse": Task(
        "gives weights of words",
        lambda model: isinstance(model.checkpoint.head, SparseVector),
        lambda served: served.embed_sparse(_A_TEXT, truncation="end", name=a_text),
    ),
    **{
        role.served: Task(f"can {role.does}", partial(_serves, task=role.served))
        for role in ROLES.values()
        if role.served is not None
    },
    "masked_words": Task("predicts masked words", _predicts_words),
    "embed_all": Task("gives a vector for each token", lambda model: True),
    # No module has the weights of one adapter of several.
    "attention": Task("has attention", lambda model: getattr(model.engine, "adapter", None) is None),
}


@dataclass(frozen=True)
class ServedTexts(Reader):
    """The reader of a model that refuses a request of more tokens than may wait."""

    most_tokens: int

    def whole(
        self,
        texts: str | Sequence[str],
        pairs: str | Sequence[str] | None = None,
        *,
        truncation: LongTexts = "window",
        name: Name = numbered,
        pair_name: Name | None = None,
    ) -> list[Encoding]:
        """See `Reader.whole`; many tokens are counted before they are encoded, which takes much memory."""
        if truncation == "window":
            self._check_count(several("texts", texts if pairs is None else pairs))
        encodings = super().whole(texts, pairs, truncation=truncation, name=name, pair_name=pair_name)
        if truncation == "window":  # windows of more tokens than may wait would take long to make
            check_fits(sum(map(len, encodings)), self.most_tokens)
        return encodings

    def _check_count(self, texts: Sequence[str]) -> None:
        if sum(map(len, texts)) <= self.most_tokens:
            return
        engine, counted = self.tokenizer.engine, 0
        for text in texts:
            for start in range(0, len(text), COUNTED_CHARACTERS):
                block = text[start : start + COUNTED_CHARACTERS].encode(errors="replace").decode()
                # The end of a block cuts a word.
                counted += len(engine.encode_batch_fast([block], add_special_tokens=False)[0]) - 1
                if counted > self.most_tokens:
                    raise Refused(
                        413,
                        "too_many_tokens",
                        f"the request has more than {self.most_tokens:,} tokens, the most that may wait; "
                        "send fewer texts",
                    )


class ServedModel:
    """One model under the name that requests use.

    Args:
        name: the name.
        model: the model.
        limits: how many tokens a forward pass has at most, and how many may wait.
    """

    def __init__(self, name: str, model: Model, limits: Limits) -> None:
        self.name, self.model, self._tokens_per_pass = name, model, limits.tokens_per_pass
        self._routed: RoutedEngine | None = getattr(model.engine, "routed", None)
        self._adapter: int | None = getattr(model.engine, "adapter", None)
        self.encoder: Hashable = name
        """Names the encoder; models that are adapters of one have the same."""
        self.tasks = tuple(task for task, row in TASKS.items() if row.can(model))
        """What it can do."""
        self._limits = limits

    @cached_property
    def texts(self) -> ServedTexts:
        """With which tasks begin."""
        return ServedTexts(self.model.checkpoint, self.name, self._limits.queued_tokens)

    def work(self, ready: Ready[Any]) -> Work:
        """A prepared task as work for the scheduler."""
        # Global tokens differ between tasks, and states depend on them.
        shares = ready.reads_last_states and not has_global_tokens(self.model.spec)
        return Work((self.name, ready.key), partial(self._compute, ready.run), self if shares else None)

    def _compute(self, run: Callable[..., Any], texts: Sequence[Any], engine: Engine | None = None) -> Any:
        return run(
            engine or self.model.engine,
            encodings=texts,
            tokens_per_pass=self._tokens_per_pass,
            name=a_text,
        )

    def read_together(self, parts: Sequence[Part], texts: Sequence[Any]) -> list[Any]:
        """See `SharedEncoder`; all parts are of models of its encoder."""
        ends = np.cumsum([0, *(count for _, _, count in parts)]).tolist()
        groups = [texts[start:end] for start, end in pairwise(ends)]
        engines: Sequence[Engine]
        if self._routed is None:
            engines = [self.model.engine.with_states(pack(self.model.spec, texts, "none"))] * len(parts)
        else:
            engines = self._routed.with_states(
                [
                    (cast("ServedModel", model)._adapter, pack(self.model.spec, group, "none"))
                    for (model, _, _), group in zip(parts, groups, strict=True)
                ]
            )
        return [
            result
            for (_, run, _), group, engine in zip(parts, groups, engines, strict=True)
            for result in run(group, engine)
        ]

    def share(self) -> None:
        """Read now what forked workers would otherwise read once each: the weights of heads."""
        engine, without = self.model.engine, {"embed", "embed_all", "attention"}
        if isinstance(engine, NativeEngine) and set(self.tasks) - without:
            engine.heads.read()

    def embed(
        self,
        inputs: Inputs,
        *,
        truncation: Truncation,
        normalize: bool | None = None,
        dimensions: int | None = None,
        prompt_name: str | None = None,
        prompt: str | None = None,
        name: Name,
    ) -> Ready[NDArray[np.float32]]:
        """Texts or ids whose results are rows (E,); options as of `unmask.models.model.Model.embed`.

        Token ids are read as they are, without a prompt.
        """
        model = self.model
        whole = model.embedding_head(None, normalize)
        if dimensions is not None and dimensions > whole.width(model.spec):
            raise BadField(
                "dimensions",
                f"dimensions is {dimensions}, and the embeddings of {self.name} have "
                f"{whole.width(model.spec)}; ask for fewer",
            )
        # What is cut from a vector of length 1 is normalized again, as OpenAI's and TEI's servers do.
        head = whole if dimensions is None else model.embedding_head(None, whole.normalize, dimensions)
        if inputs.ids is not None:
            chosen_prompt(head, prompt, prompt_name, self.name)  # refuses one that there is not
            return embed.of_encodings(
                self.texts, self.of_ids(inputs, prompt_name, truncation=truncation, name=name), head
            )
        return embed.prepare(
            self.texts,
            inputs.texts,
            head,
            prompt=prompt,
            prompt_name=prompt_name,
            truncation=truncation,
            name=name,
        )

    def of_ids(
        self, inputs: Inputs, prompt_name: str | None, *, truncation: Truncation, name: Name
    ) -> list[Encoding]:
        """Token ids as they are.

        Raises:
            BadField: a prompt was named for them, or an id is wrong.
            TextError: a sequence is refused.
        """
        if prompt_name is not None:
            raise BadField("prompt_name", "prompt_name is for texts, and token ids were sent; leave it out")
        return encodings_of_ids(self.model, inputs.ids or [], truncation=truncation, name=name)

    def embed_sparse(self, inputs: Inputs, *, truncation: Truncation, name: Name) -> Ready[list[WordWeights]]:
        """Texts or ids whose results are `WordWeights`."""
        if inputs.ids is not None:
            encodings = self.of_ids(inputs, None, truncation=truncation, name=name)
            return sparse_vectors.of_encodings(self.texts, encodings)
        return sparse_vectors.prepare(self.texts, inputs.texts, truncation=truncation, name=name)

    def multi_vectors(
        self, texts: Sequence[str], kind: TextKind, *, truncation: Truncation, name: Name
    ) -> Ready[list[TokenVectors]]:
        """Texts whose results are one vector for each token."""
        return multi_vectors.prepare(self.texts, texts, kind, truncation=truncation, name=name)

    @property
    def reads_pairs(self) -> bool:
        """Whether `rerank` reads the query with each text, and not once."""
        return not _gives_many_vectors(self.model)

    def rerank(
        self, query: str, texts: Sequence[str], *, truncation: Truncation, pair_name: Name
    ) -> Ready[Relevance]:
        """The relevance of texts for a query: of a cross-encoder, or by late interaction (MaxSim)."""
        if self.reads_pairs:
            pairs = pair_scores.prepare(
                self.texts,
                query,
                texts,
                activation="identity",
                truncation=truncation,
                document_name=pair_name,
            )
            return _finished(pairs, _of_logits)
        vectors = late_interaction.prepare(
            self.texts, query, texts, truncation=truncation, document_name=pair_name
        )
        return _finished(vectors, _of_matches)

    def warm(self) -> None:
        """Run tasks once, so that the first request finds everything compiled and in memory."""
        for task in self.tasks:
            warm = TASKS[task].warm
            if warm is not None:
                ready = warm(self)
                self.work(ready).run(ready.encodings)

    def info(self) -> dict[str, Any]:
        """What `/info` says of the model."""
        model = self.model
        head = model.checkpoint.head
        kind: dict[str, Any] = {}
        if isinstance(head, PooledVector):
            kind = {"embedding": {"pooling": "+".join(head.pooling)}}
        elif isinstance(head, SparseVector):
            kind = {"embedding": {"pooling": "splade"}}
        elif "rerank" in self.tasks:
            kind = {"reranker": {}}
        elif "predict" in self.tasks:
            labels = classifier_of(model.spec, "sequence", self.name)
            names = labels.labels or tuple(f"LABEL_{index}" for index in range(labels.classes))
            kind = {
                "classifier": {
                    "id2label": {str(index): label for index, label in enumerate(names)},
                    "label2id": {label: index for index, label in enumerate(names)},
                }
            }
        return {
            "model_id": model.name,
            "model_sha": model.revision,
            "model_dtype": model.dtype,
            "served_model_name": self.name,
            "model_type": kind,
            "tasks": list(self.tasks),
            "prompts": dict(head.prompts) if isinstance(head, PooledVector) else {},
            "default_prompt": head.default_prompt if isinstance(head, PooledVector) else None,
            "max_input_length": model.max_tokens,
        }


class Models:
    """The models of a server, in the order in which they were named."""

    def __init__(self, models: Mapping[str, Model], limits: Limits) -> None:
        if not models:
            raise InvalidRequest("models is empty; name at least one")
        self.all = tuple(ServedModel(name, model, limits) for name, model in models.items())
        encoders: dict[object, Hashable] = {}
        for served in self.all:
            served.encoder = encoders.setdefault(
                getattr(served.model.engine, "routed", served.model.engine), served.name
            )

    def warm(self) -> None:
        """Run each task of each model once."""
        for served in self.all:
            served.warm()

    def named(self, name: str | None, task: str | None = None, *, field: str = "model") -> ServedModel:
        """The model with that name, or the first that can do the task (if any) if no name is given.

        Args:
            name: what the request names.
            task: what the model must do, if anything.
            field: the field of the request that names it, for errors.

        Raises:
            BadField: no model has the name, or none can do the task.
        """
        names = ", ".join(served.name for served in self.all)
        if name is not None:
            chosen = next((served for served in self.all if served.name == name), None)
            if chosen is None:
                raise BadField(
                    field, f"there is no model {name[:80]!r}; there are {names}", 404, "model_not_found"
                )
        else:
            chosen = next((served for served in self.all if task in served.tasks), self.all[0])
        if task is not None and task not in chosen.tasks:
            raise BadField(
                field,
                f"{chosen.name} is not a model that {TASKS[task].ability}; it can do: "
                + ", ".join(chosen.tasks),
                kind="wrong_task",
            )
        return chosen

"""The models of a server: what each can do, and the work that its passes do."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from unmask.engines.engine import Engine
from unmask.engines.native.engine import NativeEngine
from unmask.errors import InvalidRequest
from unmask.models.load import Model
from unmask.serve.errors import BadField
from unmask.serve.fields import Inputs
from unmask.serve.ids import encodings_of_ids
from unmask.serve.scheduler import Part, Readable, Work
from unmask.spec import Classifier, PairScore, PooledVector, SparseVector
from unmask.spec.encoder import masked_lm_role
from unmask.spec.global_tokens import has_global_tokens, pack
from unmask.tasks.classify import Classification, classifier_of, classify
from unmask.tasks.embed import embed
from unmask.tasks.long_texts import windowed_logits
from unmask.tasks.pair_scores import pair_scores
from unmask.tasks.prompts import chosen_prompt, encoded_after, prompt_of, unpooled_tokens
from unmask.tasks.sparse_vectors import WordWeights, sparse_vectors
from unmask.text import Encoding, Truncation

if TYPE_CHECKING:
    from unmask.engines.routed import RoutedEngine

Task = Literal[
    "embed",
    "rerank",
    "predict",
    "embed_sparse",
    "entities",
    "answers",
    "masked_words",
    "embed_all",
    "attention",
]

WANTED: dict[Task, str] = {
    "embed": "embeds texts",
    "rerank": "scores pairs of a query and a text",
    "predict": "predicts labels of texts",
    "embed_sparse": "gives weights of words",
    "entities": "labels words",
    "answers": "answers questions",
    "masked_words": "predicts masked words",
    "embed_all": "gives a vector for each token",
    "attention": "has attention",
}

Name = Callable[[int], str]


def a_text(index: int) -> str:
    """How errors of a pass name a text: its texts belong to several requests."""
    return "a text"


@dataclass(frozen=True)
class Ready:
    """Tokenized texts with the work to do on them."""

    work: Work
    encodings: Sequence[Readable]
    """What is read, each by itself: texts, or the windows of long ones."""
    finish: Callable[[list[Any]], list[Any]] | None = None
    """From the results of ``encodings`` to those of the request; None if they are the same."""
    texts: Sequence[Encoding] | None = None
    """The whole texts, if ``encodings`` are windows of them."""

    @property
    def truncated(self) -> int:
        """How many texts lost their end."""
        texts = self.encodings if self.texts is None else self.texts
        return sum(encoding.truncated_tokens > 0 for encoding in texts)


class ServedModel:
    """One model under the name that requests use.

    Args:
        name: the name.
        model: the model.
        tokens_per_pass: the maximum number of tokens per forward pass.
    """

    def __init__(self, name: str, model: Model, tokens_per_pass: int) -> None:
        self.name, self.model, self.tokens_per_pass = name, model, tokens_per_pass
        self._routed: RoutedEngine | None = getattr(model.engine, "routed", None)
        self._adapter: int | None = getattr(model.engine, "adapter", None)
        self.encoder: Hashable = name
        """Names the encoder; models that are adapters of one have the same."""
        head = model.checkpoint.head
        roles = [one.role for one in model.spec.heads if isinstance(one, Classifier)]
        found: dict[Task, bool] = {
            "embed": isinstance(head, PooledVector),
            "rerank": isinstance(head, PairScore) and head.labels == 1,
            "predict": "sequence" in roles and not (isinstance(head, PairScore) and head.labels == 1),
            "embed_sparse": isinstance(head, SparseVector),
            "entities": "tokens" in roles,
            "answers": any(
                isinstance(one, Classifier) and one.role == "span" and one.classes == 2
                for one in model.spec.heads
            ),
            "masked_words": _predicts_words(model),
            "embed_all": True,
            # No module has the weights of one adapter of several.
            "attention": self._adapter is None,
        }
        self.tasks: tuple[Task, ...] = tuple(task for task, can in found.items() if can)
        """What it can do."""

    @property
    def reader(self) -> "ServedModel | None":
        """It, if what it does with a text needs nothing but the text's last hidden states."""
        return None if has_global_tokens(self.model.spec) else self

    def read_together(self, parts: Sequence[Part], texts: Sequence[Any]) -> list[Any]:
        """See `Reader`; all readers are models of its encoder."""
        ends = np.cumsum([0, *(count for _, _, count in parts)]).tolist()
        own = [texts[start:end] for start, end in pairwise(ends)]
        engines: Sequence[Engine]
        if self._routed is None:
            engines = [self.model.engine.with_states(pack(self.model.spec, texts, "none"))] * len(parts)
        else:
            engines = self._routed.with_states(
                [
                    (cast("ServedModel", reader)._adapter, pack(self.model.spec, some, "none"))
                    for (reader, _, _), some in zip(parts, own, strict=True)
                ]
            )
        return [
            result
            for (_, run, _), some, engine in zip(parts, own, engines, strict=True)
            for result in run(some, engine)
        ]

    def share(self) -> None:
        """Read now what forked workers would otherwise read once each: the modules of heads."""
        engine, without = self.model.engine, {"embed", "embed_all", "attention"}
        if isinstance(engine, NativeEngine) and set(self.tasks) - without:
            _ = engine.with_heads

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
    ) -> Ready:
        """Texts or ids whose results are rows (E,); options as of `unmask.models.load.Model.embed`.

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
        before = chosen_prompt(head, prompt, prompt_name, self.name)
        encodings, before = self.encoded(
            inputs, before, named=prompt_name is not None, truncation=truncation, name=name
        )
        skipping = "" if head.pools_prompt else before
        return Ready(
            Work((self.name, "embed", head, skipping), partial(self._embed, head, before), self.reader),
            encodings,
        )

    def encoded(
        self,
        inputs: Inputs,
        before: str = "",
        *,
        named: bool = False,
        truncation: Truncation,
        name: Name,
    ) -> tuple[list[Encoding], str]:
        """Texts after a prompt, or token ids, and the prompt that was used: none before ids.

        Raises:
            BadField: a prompt was ``named`` for token ids, or an id is wrong.
            TextError: a text is refused.
        """
        if inputs.ids is not None:
            if named:
                raise BadField(
                    "prompt_name", "prompt_name is for texts, and token ids were sent; leave it out"
                )
            return encodings_of_ids(self.model, inputs.ids, truncation=truncation, name=name), ""
        some = [before + text if text.strip() else text for text in inputs.texts]
        return self.model.tokenize(some, truncation=truncation, name=name), before

    def _embed(
        self, head: PooledVector, prompt: str, encodings: Sequence[Encoding], engine: Engine | None = None
    ) -> NDArray[np.float32]:
        return embed(
            engine or self.model.engine,
            head,
            encodings,
            skipped=unpooled_tokens(self.model.tokenizer, head, prompt),
            tokens_per_pass=self.tokens_per_pass,
            name=a_text,
        )

    def embed_sparse(self, inputs: Inputs, *, truncation: Truncation, name: Name) -> Ready:
        """Texts or ids whose results are `WordWeights`, as of `unmask.models.load.Model.sparse_vectors`."""
        head = self.model.checkpoint.head
        assert isinstance(head, SparseVector)
        if inputs.ids is not None:
            encodings, _ = self.encoded(inputs, truncation=truncation, name=name)
        else:
            encodings = encoded_after(
                self.model.tokenizer,
                prompt_of(head.prompts, "document"),
                inputs.texts,
                max_tokens=self.model.max_tokens,
                truncation=truncation,
                name=name,
            )
        work = Work((self.name, "embed_sparse"), partial(self._embed_sparse, head), self.reader)
        return Ready(work, encodings)

    def _embed_sparse(
        self, head: SparseVector, encodings: Sequence[Encoding], engine: Engine | None = None
    ) -> list[WordWeights]:
        return sparse_vectors(
            engine or self.model.engine, head, encodings, tokens_per_pass=self.tokens_per_pass, name=a_text
        )

    def rerank(
        self,
        query: str,
        texts: Sequence[str],
        *,
        truncation: Truncation,
        pair_name: Name,
    ) -> Ready:
        """Pairs whose results are logits, as of `score_pairs` of a `Model` without an activation.

        Answers are ordered by them, since scores near 1 are equal in float32.
        """
        head = self.model.checkpoint.head
        assert isinstance(head, PairScore)
        encodings = self.model.tokenizer.encode_batch(
            [query] * len(texts),
            texts,
            max_tokens=self.model.max_tokens,
            truncation=truncation,
            name=lambda _: "the query",
            pair_name=pair_name,
        )
        # Documents of one query share its states, which are no other text's.
        reader = None if head.shared_query else self.reader
        work = Work((self.name, "rerank"), partial(self._rerank, head), reader)
        return Ready(work, encodings)

    def _rerank(
        self, head: PairScore, encodings: Sequence[Encoding], engine: Engine | None = None
    ) -> NDArray[np.float32]:
        return pair_scores(
            engine or self.model.engine,
            head,
            encodings,
            "identity",
            tokens_per_pass=self.tokens_per_pass,
            name=a_text,
        )

    def predict(
        self, texts: Sequence[str], pairs: Sequence[str] | None, *, truncation: Truncation, name: Name
    ) -> Ready:
        """Texts or pairs whose results are `Classification`, as of `unmask.models.load.Model.classify`."""
        encodings = self.model.tokenize(texts, pairs, truncation=truncation, name=name)
        head = classifier_of(self.model.spec, "sequence", "classify texts", self.name)
        return Ready(Work((self.name, "predict"), partial(self._predict, head), self.reader), encodings)

    def _predict(
        self, head: Classifier, encodings: Sequence[Encoding], engine: Engine | None = None
    ) -> list[Classification]:
        return classify(
            head,
            windowed_logits(
                engine or self.model.engine,
                "sequence",
                encodings,
                max_tokens=self.model.max_tokens,
                tokens_per_pass=self.tokens_per_pass,
                name=a_text,
            ),
        )

    def warm(self) -> None:
        """Run each task once, so that the first request finds everything compiled and in memory."""
        one = Inputs(["a text"], None, True)
        jobs: dict[Task, Callable[[], Ready]] = {
            "embed": lambda: self.embed(one, truncation="end", name=a_text),
            "embed_sparse": lambda: self.embed_sparse(one, truncation="end", name=a_text),
            "rerank": lambda: self.rerank("a text", ["a text"], truncation="end", pair_name=a_text),
            "predict": lambda: self.predict(["a text"], None, truncation="end", name=a_text),
        }
        for task in [task for task in self.tasks if task in jobs]:
            ready = jobs[task]()
            ready.work.run(ready.encodings)

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
            labels = classifier_of(model.spec, "sequence", "classify texts", self.name)
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

    def __init__(self, models: Mapping[str, Model], tokens_per_pass: int) -> None:
        if not models:
            raise InvalidRequest("models is empty; name at least one")
        self.all = tuple(ServedModel(name, model, tokens_per_pass) for name, model in models.items())
        encoders: dict[object, Hashable] = {}
        for one in self.all:
            one.encoder = encoders.setdefault(getattr(one.model.engine, "routed", one.model.engine), one.name)

    def warm(self) -> None:
        """Run each task of each model once."""
        for one in self.all:
            one.warm()

    def named(self, name: str | None, task: Task | None = None) -> ServedModel:
        """The model with that name, or the first that can do the task (if any) if no name is given.

        Raises:
            BadField: no model has the name, or none can do the task.
        """
        names = ", ".join(one.name for one in self.all)
        if name is not None:
            found = next((one for one in self.all if one.name == name), None)
            if found is None:
                raise BadField(
                    "model", f"there is no model {name[:80]!r}; there are {names}", 404, "model_not_found"
                )
        else:
            found = next((one for one in self.all if task in one.tasks), self.all[0])
        if task is not None and task not in found.tasks:
            raise BadField(
                "model",
                f"{found.name} is not a model that {WANTED[task]}; it can do: {', '.join(found.tasks)}",
                kind="wrong_task",
            )
        return found


def _predicts_words(model: Model) -> bool:
    """Whether it has a head for masked words, and its tokenizer a mask."""
    try:
        masked_lm_role(model.spec, model.name)
    except InvalidRequest:
        return False
    return model.tokenizer.mask_id is not None

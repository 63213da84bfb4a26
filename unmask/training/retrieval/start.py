"""The encoder and objective of a retriever's training, and the checkpoint that is saved in the end."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import torch

from unmask.encoder.encoder import Encoder
from unmask.errors import InvalidRequest
from unmask.spec import (
    Dense,
    EncoderSpec,
    MaskedLM,
    MultiVector,
    PairScore,
    PooledVector,
    SparseVector,
    TextKind,
    check_shared_query,
)
from unmask.tasks.prompts import prompt_of
from unmask.text import Tokenizer
from unmask.training.finetune.settings import FinetuneSettings
from unmask.training.finetune.start import load_weights, task_checkpoint, task_encoder, with_config
from unmask.training.objectives.distillation import init_from_teacher
from unmask.training.objectives.retrieval_bi_encoder import (
    DenseObjective,
    MultiVectorObjective,
    SparseObjective,
)
from unmask.training.objectives.retrieval_distillation import VectorDistillation
from unmask.training.objectives.retrieval_reranker import RerankerObjective
from unmask.training.objectives.specs import PairLoss, VectorLoss
from unmask.training.retrieval.settings import RetrievalSettings
from unmask.training.run.callbacks import Say
from unmask.weights import Checkpoint
from unmask.weights.build import build
from unmask.weights.heads.multi_vector_files import PUNCTUATION
from unmask.weights.heads.sentence_modules import to_json
from unmask.weights.write.new_checkpoint import new_encoder
from unmask.weights.write.save import check_written

RetrievalObjective = (
    DenseObjective | MultiVectorObjective | SparseObjective | RerankerObjective | VectorDistillation
)
"""The objectives of all kinds."""

SETTINGS = "config_sentence_transformers.json"
"""The file of prompts and similarity in a folder of `sentence-transformers`."""

Prompts = tuple[tuple[str, str], ...]


def retriever_checkpoint(
    settings: FinetuneSettings, begun: Checkpoint, taught: int | None = None
) -> Checkpoint:
    """The checkpoint that is saved: the encoder of the first one, and its output for a text or a pair.

    Args:
        settings: settings of the run.
        begun: the checkpoint to start from.
        taught: the width of the teacher's vectors, of distillation.

    Raises:
        InvalidRequest: the family cannot store it.
        CheckpointError: the config asks for something that is not supported.
    """
    retrieval = settings.retrieval
    assert retrieval is not None
    if retrieval.kind == "reranker":
        checkpoint = task_checkpoint(settings, begun, ())
        if retrieval.shared_query:
            check_shared_query(checkpoint.spec)
        return replace(
            checkpoint,
            head=PairScore(
                1,
                "sigmoid" if retrieval.loss == "bce" else "identity",
                shared_query=retrieval.shared_query,
            ),
            max_tokens=_longest(settings, checkpoint),
        )
    sparse = retrieval.kind == "sparse"
    checkpoint = with_config(settings, begun, {}, *(["masked"] * sparse))
    heads = tuple(head for head in checkpoint.spec.heads if sparse and isinstance(head, MaskedLM))
    spec = replace(checkpoint.spec, pooler=None, heads=heads)
    if retrieval.layers:
        spec = with_layers(spec, retrieval.layers)
    check_written(checkpoint.family, spec, checkpoint.config)
    longest = _longest(settings, checkpoint)
    if sparse:
        return replace(checkpoint, spec=spec, head=sparse_vector(retrieval, begun), max_tokens=longest)
    if retrieval.kind == "multi_vector":
        return replace(checkpoint, spec=spec, head=multi_vector(retrieval, begun), max_tokens=longest)
    return replace(
        checkpoint,
        spec=spec,
        head=pooled_vector(retrieval, begun, spec, taught),
        sentence_files=_sentence_files(retrieval, begun),
        max_tokens=longest,
    )


def with_layers(spec: EncoderSpec, layers: Sequence[int]) -> EncoderSpec:
    """The encoder with some of its layers.

    Raises:
        InvalidRequest: there is no such layer, or layers share weights.
    """
    depth = len(spec.layers)
    if max(layers) >= depth or min(layers) < 0:
        raise InvalidRequest(
            f"retrieval.layers is {list(layers)}, and the encoder has the layers 0 to {depth - 1}"
        )
    if spec.sharing is not None:
        raise InvalidRequest(
            "retrieval.layers is given, and the encoder's layers share weights; leave it out"
        )
    return replace(spec, layers=tuple(spec.layers[layer] for layer in layers))


def pooled_vector(
    retrieval: RetrievalSettings, begun: Checkpoint, spec: EncoderSpec, taught: int | None
) -> PooledVector:
    """The vector of a text: as the first checkpoint makes it, but for what the settings name. Of a student
    of another width than its teacher, a new layer makes the teacher's width.

    Raises:
        InvalidRequest: the checkpoint leaves the tokens of a prompt out.
    """
    output = begun.head if isinstance(begun.head, PooledVector) else PooledVector()
    if not output.pools_prompt:
        raise InvalidRequest(
            f"{begun.source.name} leaves the tokens of a prompt out of a text's vector, which training is "
            "not built for; start from another checkpoint"
        )
    if retrieval.pooling is not None:
        output = replace(output, pooling=(retrieval.pooling,))
    if taught is not None:
        narrow = replace(output, projections=(), dimensions=None)
        wide = narrow.width(spec) == taught
        output = (
            output
            if output.width(spec) == taught
            else narrow
            if wide
            else replace(narrow, projections=(Dense(taught),))
        )
    unit = output.normalize if taught is not None else retrieval.ranking.similarity == "cosine"
    return replace(output, normalize=unit, prompts=_prompts(retrieval, output.prompts), default_prompt=None)


def multi_vector(retrieval: RetrievalSettings, begun: Checkpoint) -> MultiVector:
    """The vectors of a text's tokens: as the first checkpoint makes them, or by a new layer.

    Raises:
        InvalidRequest: the checkpoint expands queries.
    """
    if isinstance(begun.head, MultiVector):
        if begun.head.expansion is not None:
            raise InvalidRequest(
                f"{begun.source.name} expands queries by mask tokens, which training is not built for; start "
                "from another checkpoint"
            )
        return replace(begun.head, prompts=_prompts(retrieval, begun.head.prompts))
    return MultiVector(
        (Dense(retrieval.token_width, bias=False),),
        prompts=_prompts(retrieval, ()),
        query_tokens=retrieval.query_tokens,
        skipped_words=PUNCTUATION if retrieval.skip_punctuation else (),
    )


def sparse_vector(retrieval: RetrievalSettings, begun: Checkpoint) -> SparseVector:
    """The weights of words: as the first checkpoint makes them, or by the largest logit of each word."""
    output = begun.head if isinstance(begun.head, SparseVector) else SparseVector()
    return replace(
        output,
        static_queries=retrieval.static_queries,
        prompts=_prompts(retrieval, output.prompts),
    )


def _longest(settings: FinetuneSettings, checkpoint: Checkpoint) -> int | None:
    limits = [limit for limit in (settings.data.max_tokens, checkpoint.max_tokens) if limit is not None]
    return min(limits, default=None)


def _prompts(retrieval: RetrievalSettings, stored: Prompts) -> Prompts:
    """The prompts of the settings, and the checkpoint's own where these name none."""
    chosen: dict[TextKind, str | None] = {
        "query": retrieval.query_prompt,
        "document": retrieval.document_prompt,
    }
    prompts = {kind: prompt_of(stored, kind) if prompt is None else prompt for kind, prompt in chosen.items()}
    return tuple((kind, prompt) for kind, prompt in prompts.items() if prompt)


def _sentence_files(retrieval: RetrievalSettings, begun: Checkpoint) -> dict[str, bytes]:
    """The first checkpoint's file of settings, with the similarity of this run."""
    stored = begun.sentence_files.get(SETTINGS)
    table: dict[str, Any] = {} if stored is None else json.loads(stored)
    if retrieval.kind == "dense":
        table |= {"similarity_fn_name": retrieval.ranking.similarity}
    return {SETTINGS: to_json(table)}


def retriever(
    settings: FinetuneSettings,
    checkpoint: Checkpoint,
    begun: Checkpoint,
    say: Say,
    *,
    steps: int,
    weights: bool = True,
) -> RetrievalObjective:
    """The objective with the first checkpoint's weights.

    Args:
        settings: settings of the run.
        checkpoint: see `retriever_checkpoint`.
        begun: the checkpoint to start from.
        say: called with a sentence about new and left-out weights.
        steps: steps of the run.
        weights: False skips reading weights, for a run that is resumed.

    Raises:
        InvalidRequest: a tensor of the encoder has another shape, or a width is larger than the vectors.
        CheckpointError: the weights cannot be read.
    """
    retrieval, head = settings.retrieval, checkpoint.head
    assert retrieval is not None
    common = {"negatives": retrieval.negatives, "tokens_per_pass": retrieval.tokens_per_pass}
    if retrieval.kind == "reranker":
        encoder = task_encoder(settings, checkpoint, begun, say, weights=weights)
        loss = cast(PairLoss, retrieval.loss)
        return RerankerObjective(encoder, loss, pos_weight=retrieval.pos_weight, **common)
    torch.manual_seed(settings.seed)
    encoder = new_encoder(checkpoint, kernel=settings.model.kernel)
    if weights:
        _fill(encoder, begun, retrieval, say)
    if isinstance(head, MultiVector):
        skipped = skipped_ids(checkpoint.tokenizer, head)
        return MultiVectorObjective(encoder, retrieval.ranking, skipped=skipped, **common)
    if isinstance(head, SparseVector):
        return SparseObjective(encoder, head, retrieval.ranking, retrieval.regularizer, steps=steps, **common)
    assert isinstance(head, PooledVector)
    if retrieval.kind == "distillation":
        return VectorDistillation(
            encoder, head, cast(VectorLoss, retrieval.loss), tokens_per_pass=retrieval.tokens_per_pass
        )
    whole = head.width(encoder.spec)
    if retrieval.widths and max(retrieval.widths) > whole:
        raise InvalidRequest(
            f"retrieval.widths names {max(retrieval.widths)} and the vectors have {whole} numbers; name "
            "smaller widths"
        )
    weights_of = retrieval.width_weights or (1.0,) * len(retrieval.widths)
    widths = dict(zip(retrieval.widths, weights_of, strict=True))
    depths = checked_depths(retrieval.depths, encoder.spec)
    return DenseObjective(encoder, head, retrieval.ranking, widths=widths, depths=depths, **common)


def checked_depths(depths: Sequence[int], spec: EncoderSpec) -> tuple[int, ...]:
    """The depths in ascending order.

    Raises:
        InvalidRequest: the encoder has not more layers, or its first ones cannot be loaded alone.
    """
    if depths and max(depths) >= len(spec.layers):
        raise InvalidRequest(
            f"retrieval.depths names {max(depths)} and the encoder has {len(spec.layers)} layers, which are "
            "always trained; name smaller numbers"
        )
    if depths and spec.gate is not None:
        raise InvalidRequest(
            "retrieval.depths is for encoders whose first layers can be loaded alone, and all layers of this "
            "one read the embedding through one matrix; leave depths out"
        )
    return tuple(sorted(depths))


def _fill(encoder: Encoder, begun: Checkpoint, retrieval: RetrievalSettings, say: Say) -> None:
    """Give a new encoder the first checkpoint's weights, or some of them."""
    teacher = build(begun)
    if retrieval.kind == "sparse" and begun.query_weights is not None and not retrieval.static_queries:
        say(f"the table of {begun.source.name} for queries is left out, because static_queries is false")
    if retrieval.layers:
        new = init_from_teacher(encoder, teacher, retrieval.layers)
        news = f"; {', '.join(new)} start with new weights" if new else ""
        say(
            f"the encoder has the layers {', '.join(map(str, retrieval.layers))} of {begun.source.name}{news}"
        )
    elif retrieval.new_weights:
        _components(encoder, teacher)
        say(f"the encoder starts with new weights, and its words with components of {begun.source.name}'s")
    else:
        load_weights(encoder, teacher, "", begun, say)


@torch.no_grad()
def _components(encoder: Encoder, teacher: Encoder) -> None:
    """Set word embeddings to the principal components of the teacher's, with the spread that they had.

    Raises:
        InvalidRequest: the vocabularies differ.
    """
    words, other = encoder.embedding.words.weight, teacher.embedding.words.weight
    if len(words) != len(other):
        raise InvalidRequest(
            f"model.config gives a vocabulary of {len(words)} and the checkpoint has {len(other)}; keep it"
        )
    if words.shape[1] > other.shape[1]:
        return
    centered = other - other.mean(0)
    _, vectors = torch.linalg.eigh(centered.T @ centered)
    components = centered @ vectors[:, -words.shape[1] :].flip(1)
    words.copy_(components * (words.std() / components.std()))


def skipped_ids(tokenizer: Tokenizer, head: MultiVector) -> list[int]:
    """The ids of tokens of documents without a vector."""
    if "document" not in head.skipped_in:
        return []
    ids = (tokenizer.token_to_id(word) for word in head.skipped_words)
    return [number for number in ids if number is not None]

"""The encoder and objective of a retriever's training, and the checkpoint that is saved in the end."""

import json
import string
from dataclasses import replace
from typing import Any, cast

import torch
from torch import nn

from unmask.errors import InvalidRequest
from unmask.finetuning.retrieval.settings import RetrievalSettings
from unmask.finetuning.settings import FinetuneSettings
from unmask.finetuning.start import Say, load_weights, task_checkpoint, task_encoder, with_config
from unmask.learn.objectives.retrieval.dense import DenseObjective
from unmask.learn.objectives.retrieval.multi_vector import MultiVectorObjective
from unmask.learn.objectives.retrieval.reranker import RerankerObjective
from unmask.learn.objectives.retrieval.spec import PairLoss
from unmask.model.encoder import Encoder
from unmask.model.spec import Dense, MultiVector, PairScore, PooledVector
from unmask.model.weights import Checkpoint
from unmask.model.weights.build import build
from unmask.model.weights.new_checkpoint import new_encoder
from unmask.model.weights.writable import check_written
from unmask.text import Tokenizer

RetrievalObjective = DenseObjective | MultiVectorObjective | RerankerObjective
"""The objectives of all kinds."""

PROMPTS = "config_sentence_transformers.json"
"""The file that holds the prompts of a folder of `sentence-transformers`."""


def retriever_checkpoint(settings: FinetuneSettings, begun: Checkpoint) -> Checkpoint:
    """The checkpoint that is saved: the encoder of the first one, and what it gives for a text or a pair.

    Raises:
        InvalidRequest: the family cannot store it.
        CheckpointError: the config asks for something that is not supported.
    """
    retrieval = settings.retrieval
    assert retrieval is not None
    if retrieval.kind == "reranker":
        made = task_checkpoint(settings, begun, ())
        return replace(made, head=PairScore(1), max_tokens=_longest(settings, made))
    made = with_config(settings, begun, {})
    spec = replace(made.spec, pooler=None, heads=())
    check_written(made.family, spec, made.config)
    head: PooledVector | MultiVector = pooled_vector(retrieval, begun)
    if retrieval.kind == "multi_vector":
        head = MultiVector((Dense(retrieval.token_width, bias=False),))
    return replace(
        made,
        spec=spec,
        head=head,
        sentence_files=_prompts(retrieval, begun),
        max_tokens=_longest(settings, made),
    )


def pooled_vector(retrieval: RetrievalSettings, begun: Checkpoint) -> PooledVector:
    """The vector of a text: as the first checkpoint makes it, but for what the settings name."""
    output = begun.head if isinstance(begun.head, PooledVector) else PooledVector()
    if retrieval.pooling is not None:
        output = replace(output, pooling=(retrieval.pooling,))
    unit = retrieval.kind == "dense" and retrieval.ranking.similarity == "cosine"
    return replace(output, normalize=unit, prompts=_prompt_names(retrieval))


def _longest(settings: FinetuneSettings, made: Checkpoint) -> int | None:
    limits = [one for one in (settings.data.max_tokens, made.max_tokens) if one is not None]
    return min(limits, default=None)


def _prompt_names(retrieval: RetrievalSettings) -> tuple[tuple[str, str], ...]:
    both = (("query", retrieval.query_prompt), ("document", retrieval.document_prompt))
    return tuple((name, prompt) for name, prompt in both if prompt)


def _prompts(retrieval: RetrievalSettings, begun: Checkpoint) -> dict[str, bytes]:
    """The first checkpoint's file with the prompts and the similarity of this run."""
    stored = begun.sentence_files.get(PROMPTS)
    table: dict[str, Any] = {} if stored is None else json.loads(stored)
    table |= {
        "prompts": {"query": retrieval.query_prompt, "document": retrieval.document_prompt},
        "default_prompt_name": None,
        "similarity_fn_name": _similarity_name(retrieval),
    }
    return {PROMPTS: (json.dumps(table, indent=2, ensure_ascii=False) + "\n").encode()}


def retriever(
    settings: FinetuneSettings, checkpoint: Checkpoint, begun: Checkpoint, say: Say, *, weights: bool = True
) -> RetrievalObjective:
    """The objective with the first checkpoint's weights.

    Args:
        settings: settings of the run.
        checkpoint: see `retriever_checkpoint`.
        begun: the checkpoint to start from.
        say: called with a sentence about what is new and what is left out.
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
        load_weights(encoder, build(begun), "", begun, say)
    if isinstance(head, MultiVector):
        layers = add_layers(encoder, head)
        skipped = punctuation(checkpoint.tokenizer) if retrieval.skip_punctuation else ()
        return MultiVectorObjective(encoder, layers, retrieval.ranking, skipped=skipped, **common)
    assert isinstance(head, PooledVector)
    whole = head.width(encoder.spec)
    if retrieval.widths and max(retrieval.widths) > whole:
        raise InvalidRequest(
            f"retrieval.widths names {max(retrieval.widths)} and the vectors have {whole} numbers; name "
            "smaller widths"
        )
    weights_of = retrieval.width_weights or (1.0,) * len(retrieval.widths)
    widths = dict(zip(retrieval.widths, weights_of, strict=True))
    return DenseObjective(encoder, head, retrieval.ranking, widths=widths, **common)


def _similarity_name(retrieval: RetrievalSettings) -> str:
    return "maxsim" if retrieval.kind == "multi_vector" else retrieval.ranking.similarity


def add_layers(encoder: Encoder, head: MultiVector) -> nn.Sequential:
    """Add the layers on each token's state to an encoder, with new weights."""
    layers, width = nn.Sequential(), encoder.spec.width
    for dense in head.projections:
        assert isinstance(dense, Dense)
        layers.append(nn.Linear(width, dense.width, bias=dense.bias))
        width = dense.width
    return layers


def punctuation(tokenizer: Tokenizer) -> list[int]:
    """The ids of punctuation marks that are single tokens."""
    found = (tokenizer.token_to_id(mark) for mark in string.punctuation)
    return [one for one in found if one is not None]

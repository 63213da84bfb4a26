"""The encoder and objective of a retriever's training, and the checkpoint that is saved in the end."""

import json
from dataclasses import replace
from typing import Any

import torch

from unmask.errors import InvalidRequest
from unmask.finetuning.retrieval.settings import RetrievalSettings
from unmask.finetuning.settings import FinetuneSettings
from unmask.finetuning.start import Say, load_weights, with_config
from unmask.learn.objectives.retrieval.dense import Contrast, DenseObjective
from unmask.model.encoder import Encoder
from unmask.model.spec import PooledVector
from unmask.model.weights import Checkpoint
from unmask.model.weights.build import build
from unmask.model.weights.new_checkpoint import new_encoder
from unmask.model.weights.writable import check_written

RetrievalObjective = DenseObjective
"""The objectives of all kinds."""

PROMPTS = "config_sentence_transformers.json"
"""The file that holds the prompts of a folder of `sentence-transformers`."""


def retriever_checkpoint(settings: FinetuneSettings, begun: Checkpoint) -> Checkpoint:
    """The checkpoint that is saved: the encoder of the first one without heads, and how it embeds.

    Raises:
        InvalidRequest: the family cannot store it.
        CheckpointError: the config asks for something that is not supported.
    """
    retrieval = settings.retrieval
    assert retrieval is not None
    made = with_config(settings, begun, {})
    spec = replace(made.spec, pooler=None, heads=())
    check_written(made.family, spec, made.config)
    return replace(
        made,
        spec=spec,
        head=pooled_vector(retrieval, begun),
        sentence_files=_prompts(retrieval, begun),
        max_tokens=_longest(settings, made),
    )


def pooled_vector(retrieval: RetrievalSettings, begun: Checkpoint) -> PooledVector:
    """The vector of a text: as the first checkpoint makes it, but for what the settings name."""
    output = begun.head if isinstance(begun.head, PooledVector) else PooledVector()
    if retrieval.pooling is not None:
        output = replace(output, pooling=(retrieval.pooling,))
    return replace(output, normalize=retrieval.similarity == "cosine", prompts=_prompt_names(retrieval))


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
        "similarity_fn_name": retrieval.similarity,
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
    retrieval = settings.retrieval
    assert retrieval is not None
    assert isinstance(checkpoint.head, PooledVector)
    torch.manual_seed(settings.seed)
    encoder = new_encoder(checkpoint, kernel=settings.model.kernel)
    if weights:
        load_weights(encoder, build(begun), "", begun, say)
    return _dense(retrieval, encoder, checkpoint.head)


def _dense(retrieval: RetrievalSettings, encoder: Encoder, output: PooledVector) -> DenseObjective:
    whole = output.width(encoder.spec)
    if retrieval.widths and max(retrieval.widths) > whole:
        raise InvalidRequest(
            f"retrieval.widths names {max(retrieval.widths)} and the vectors have {whole} numbers; name "
            "smaller widths"
        )
    contrast = Contrast(
        retrieval.scale, retrieval.similarity, retrieval.directions, retrieval.partition == "joint"
    )
    return DenseObjective(
        encoder,
        output,
        contrast,
        widths=retrieval.widths,
        width_weights=retrieval.width_weights,
        negatives=retrieval.negatives,
        tokens_per_pass=retrieval.tokens_per_pass,
    )

"""RoFormer: every class with a head; embeddings narrower, wider and as wide as the encoder."""

from functools import partial

import torch

from tests.contracts.cases import Case as AnyCase

SMALL = {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
TRAINING = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.07}


def exact_angles(model) -> None:
    """Its table holds sines, then cosines, computed in float32."""
    table = model.base_model.encoder.embed_positions.weight
    rows, width = table.shape
    angles = torch.arange(rows).double()[:, None] * 10_000.0 ** (-torch.arange(0, width, 2).double() / width)
    table.copy_(torch.cat([angles.sin(), angles.cos()], dim=1))


Case = partial(
    AnyCase,
    unused=("encoder.embed_positions.", "roformer.encoder.embed_positions."),
    prepare=exact_angles,
)

CASES = [
    Case("RoFormerModel", SMALL | TRAINING | {"max_position_embeddings": 70}, "E = D", lengths=(1, 70, 9)),
    Case(
        "RoFormerModel", TINY | {"embedding_size": 3, "type_vocab_size": 1, "hidden_act": "relu"}, "E below"
    ),
    Case("RoFormerForMaskedLM", SMALL | {"embedding_size": 22, "layer_norm_eps": 1e-3}, "E above D"),
    Case("RoFormerForMaskedLM", TINY | {"tie_word_embeddings": False, "hidden_act": "relu"}, "untied"),
    Case("RoFormerForCausalLM", SMALL | {"is_decoder": True, "embedding_size": 6}, "causal"),
    Case("RoFormerForSequenceClassification", SMALL | {"num_labels": 4, "hidden_act": "relu"}, "relu"),
    Case("RoFormerForSequenceClassification", TINY | {"num_labels": 1, "embedding_size": 5}, "a score"),
    Case("RoFormerForTokenClassification", SMALL | {"num_labels": 7}),
    Case("RoFormerForQuestionAnswering", TINY | {"embedding_size": 9}),
    Case("RoFormerForMultipleChoice", SMALL | {"summary_type": "first"}),
]

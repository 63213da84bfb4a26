"""ESM: rotary and learned positions, a norm of the embedding or none, mask tokens dropped or not."""

from functools import partial

from tests.contracts.cases import Case as AnyCase

SMALL = {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
SMALL |= {"position_embedding_type": "rotary", "pad_token_id": 1}
TINY |= {"position_embedding_type": "absolute", "pad_token_id": 1}
DROPPED = {"token_dropout": True, "mask_token_id": 7}
TRAINING = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.07}

# Few ids, so that mask tokens are frequent.
Case = partial(
    AnyCase,
    vocabulary=11,
    unused=("contact_head.", "esm.contact_head.", "rotary_embeddings.", "esm.rotary_embeddings."),
)

CASES = [
    Case("EsmModel", SMALL | DROPPED | TRAINING | {"rope_theta": 500.0}, "rotary, dropped"),
    Case("EsmModel", SMALL | {"emb_layer_norm_before": True, "layer_norm_eps": 1e-3}, "rotary, norm"),
    Case("EsmModel", TINY | DROPPED | {"emb_layer_norm_before": True}, "absolute, dropped, norm"),
    Case("EsmModel", TINY | {"pad_token_id": 4, "max_position_embeddings": 28}, "absolute, full table"),
    Case("EsmForMaskedLM", SMALL | DROPPED),
    Case("EsmForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied"),
    Case("EsmForSequenceClassification", SMALL | DROPPED | {"num_labels": 4}),
    Case("EsmForSequenceClassification", TINY | {"num_labels": 1}, "a score"),
    Case("EsmForTokenClassification", SMALL | DROPPED | {"num_labels": 7}),
]

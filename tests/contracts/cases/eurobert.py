"""EuroBERT: every class with a head; as many heads of keys and values as of queries, fewer, and one."""

from tests.contracts.cases import Case

IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1, "mask_token_id": 2}
SMALL = IDS | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 11,
    "num_hidden_layers": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 250_000.0},
}
TINY = IDS | {
    "hidden_size": 4,
    "num_attention_heads": 1,
    "intermediate_size": 3,
    "num_hidden_layers": 1,
}
BIASED = {"attention_bias": True, "mlp_bias": True}
STRETCHED = {"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 77.0}}

CASES = [
    Case("EuroBertModel", SMALL),
    Case("EuroBertModel", SMALL | {"num_key_value_heads": 1}, "one head of keys", lengths=(130, 3, 77, 64)),
    Case("EuroBertModel", SMALL | {"num_key_value_heads": 3, "head_dim": 10} | BIASED, "wide heads, biases"),
    Case("EuroBertModel", SMALL | {"num_key_value_heads": 6} | STRETCHED, "every head its own, stretched"),
    Case("EuroBertModel", TINY | {"hidden_act": "gelu", "rms_norm_eps": 0.01}, "one layer, gelu"),
    Case("EuroBertForMaskedLM", SMALL),
    Case("EuroBertForMaskedLM", SMALL | BIASED | {"tie_word_embeddings": True}, "tied, biases"),
    Case("EuroBertForMaskedLM", TINY | {"tie_word_embeddings": True}, "tied, no tensor of its own"),
    Case("EuroBertForMaskedLM", TINY | BIASED, "biases"),
    Case("EuroBertForSequenceClassification", SMALL | {"num_labels": 5}),
    Case("EuroBertForSequenceClassification", SMALL | {"num_labels": 3, "classifier_pooling": "bos"}, "bos"),
    Case("EuroBertForSequenceClassification", TINY | {"num_labels": 1, "classifier_pooling": "mean"}, "mean"),
    Case("EuroBertForTokenClassification", SMALL | BIASED | {"num_labels": 7}),
]

"""UltraBERT: every class; windows of every size, either kind of layer first, biases on, off."""

from tests.contracts.cases import Case

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL = IDS | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "intermediate_size": 11,
    "num_hidden_layers": 4,
    "sliding_window": 3,
    "prediction_head_size": 10,
}
TINY = IDS | {
    "hidden_size": 4,
    "num_attention_heads": 1,
    "intermediate_size": 3,
    "num_hidden_layers": 1,
    "prediction_head_size": 5,
}
BIASED = {"attention_bias": True, "mlp_bias": True}
WHOLE_FIRST = {
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 3,
    "rope_parameters": {
        "full_attention": {
            "rope_type": "yarn",
            "factor": 4.0,
            "rope_theta": 1000.0,
            "original_max_position_embeddings": 16,
        },
        "sliding_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
    },
}

CASES = [
    Case("UltrabertModel", SMALL),
    Case("UltrabertModel", SMALL | {"sliding_window": 40}, "long texts", lengths=(130, 3, 77, 64)),
    Case("UltrabertModel", SMALL | WHOLE_FIRST | BIASED, "whole first, YaRN, biases"),
    Case("UltrabertForMaskedLM", SMALL),
    Case("UltrabertForMaskedLM", TINY | {"tie_word_embeddings": True}, "tied"),
    Case("UltrabertForSequenceClassification", SMALL | {"num_labels": 5}),
    Case(
        "UltrabertForSequenceClassification", TINY | {"num_labels": 1, "classifier_pooling": "mean"}, "mean"
    ),
    Case("UltrabertForTokenClassification", SMALL | BIASED | {"num_labels": 7}),
    Case("UltrabertForQuestionAnswering", SMALL),
]

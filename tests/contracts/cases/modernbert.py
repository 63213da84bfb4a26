"""ModernBERT: every class with a head; windows of every size, either kind of layer first, biases on, off."""

from tests.contracts.cases import Case

IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
SMALL = IDS | {
    "hidden_size": 18,
    "num_attention_heads": 3,
    "intermediate_size": 11,
    "num_hidden_layers": 5,
    "local_attention": 6,
}
TINY = IDS | {
    "hidden_size": 4,
    "num_attention_heads": 1,
    "intermediate_size": 3,
    "num_hidden_layers": 1,
}
BIASED = {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True}
SLIDING_FIRST = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "num_hidden_layers": 3,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 77.0},
        "sliding_attention": {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0},
    },
}

CASES = [
    Case("ModernBertModel", SMALL),
    Case("ModernBertModel", SMALL | {"local_attention": 3}, "odd window"),
    Case("ModernBertModel", SMALL | {"local_attention": 1}, "window of one token"),
    Case("ModernBertModel", SMALL | {"local_attention": 200}, "window beyond the text"),
    Case("ModernBertModel", SMALL | {"local_attention": 50}, "long texts", lengths=(130, 3, 77, 64)),
    Case("ModernBertModel", SMALL | SLIDING_FIRST | BIASED, "window first, stretched"),
    Case("ModernBertModel", TINY | {"hidden_activation": "silu", "norm_eps": 0.01}, "one layer, silu"),
    Case("ModernBertForMaskedLM", SMALL),
    Case("ModernBertForMaskedLM", SMALL | BIASED | {"classifier_activation": "relu"}, "biases"),
    Case("ModernBertForMaskedLM", TINY | {"decoder_bias": False}, "no decoder bias"),
    Case("ModernBertForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied"),
    Case("ModernBertForSequenceClassification", SMALL | {"num_labels": 5}),
    Case(
        "ModernBertForSequenceClassification", TINY | {"num_labels": 1, "classifier_pooling": "mean"}, "mean"
    ),
    Case("ModernBertForTokenClassification", SMALL | BIASED | {"num_labels": 7}),
    Case("ModernBertForQuestionAnswering", SMALL),
    Case("ModernBertForMultipleChoice", SMALL | BIASED),
    Case("ModernBertForMultipleChoice", TINY | {"classifier_pooling": "mean"}, "mean"),
]

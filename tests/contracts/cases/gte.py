"""GTE: every class with a head; without segments, another activation, stretched positions."""

from tests.contracts.cases import Case

SMALL = {
    "hidden_size": 30,
    "num_attention_heads": 5,
    "intermediate_size": 13,
    "num_hidden_layers": 3,
    "type_vocab_size": 2,
}
TINY = {"hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 3, "num_hidden_layers": 1}

CASES = [
    Case("GteModel", SMALL),
    Case("GteModel", SMALL | {"type_vocab_size": 0, "hidden_act": "silu"}, "no segments, silu"),
    Case(
        "GteModel",
        TINY | {"rope_parameters": {"rope_type": "linear", "factor": 1.75, "rope_theta": 60.0}},
        "stretched",
    ),
    Case("GteForMaskedLM", SMALL | {"layer_norm_eps": 1e-3, "hidden_act": "relu"}, "relu"),
    Case("GteForMaskedLM", TINY),
    Case("GteModel", SMALL | {"tie_word_embeddings": False}, "untied"),
    Case("GteForMaskedLM", SMALL | {"tie_word_embeddings": False}, "untied"),
    Case("GteForTokenClassification", SMALL | {"tie_word_embeddings": False}, "untied"),
    Case("GteForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("GteForTokenClassification", SMALL | {"num_labels": 7}),
]

"""NomicBERT: every class with a head; heads wider than their share, one segment, stretched positions."""

from tests.contracts.cases import Case

SMALL = {"hidden_size": 18, "num_attention_heads": 3, "intermediate_size": 13, "num_hidden_layers": 3}
TINY = {"hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 3, "num_hidden_layers": 1}

CASES = [
    Case("NomicBertModel", SMALL),
    Case("NomicBertModel", SMALL | {"head_dim": 4, "type_vocab_size": 1}, "narrow heads, one segment"),
    Case(
        "NomicBertModel",
        TINY | {"rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 60.0}},
        "stretched",
    ),
    Case("NomicBertForMaskedLM", SMALL | {"layer_norm_eps": 1e-3}),
    Case("NomicBertForMaskedLM", TINY | {"hidden_act": "gelu"}, "gelu"),
    Case("NomicBertForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied"),
    Case("NomicBertForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("NomicBertForTokenClassification", SMALL | {"num_labels": 7}),
]

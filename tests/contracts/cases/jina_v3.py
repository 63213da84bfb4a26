"""jina-embeddings-v3 without updates for tasks: every class with a head; other activations and positions."""

from tests.contracts.cases import Case

SMALL = {
    "hidden_size": 30,
    "num_attention_heads": 5,
    "intermediate_size": 13,
    "num_hidden_layers": 3,
}
TINY = {"hidden_size": 4, "num_attention_heads": 1, "intermediate_size": 3, "num_hidden_layers": 1}

CASES = [
    Case("JinaEmbeddingsV3Model", SMALL),
    Case("JinaEmbeddingsV3Model", SMALL | {"type_vocab_size": 2, "hidden_act": "silu"}, "segments, silu"),
    Case(
        "JinaEmbeddingsV3Model",
        TINY | {"rope_parameters": {"rope_type": "default", "rope_theta": 60.0}},
        "another theta",
    ),
    Case("JinaEmbeddingsV3ForMaskedLM", SMALL | {"layer_norm_eps": 1e-3, "hidden_act": "relu"}, "relu"),
    Case("JinaEmbeddingsV3ForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("JinaEmbeddingsV3ForTokenClassification", SMALL | {"num_labels": 7}),
    Case("JinaEmbeddingsV3ForQuestionAnswering", SMALL),
]

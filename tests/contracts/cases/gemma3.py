"""Gemma 3 in both directions: windows of every size, either kind of layer first, scores scaled otherwise."""

from tests.contracts.cases import Case

IDS = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 1}
SMALL = IDS | {
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 6,
    "intermediate_size": 11,
    "num_hidden_layers": 4,
    "sliding_window_pattern": 3,
    "sliding_window": 6,
    "query_pre_attn_scalar": 6,
    "use_bidirectional_attention": True,
}
TINY = SMALL | {
    "hidden_size": 4,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "intermediate_size": 3,
    "num_hidden_layers": 1,
}
WHOLE = {"layer_types": ["full_attention"], "use_bidirectional_attention": False}
STRETCHED = {
    "layer_types": ["full_attention", "sliding_attention", "full_attention"],
    "num_hidden_layers": 3,
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 77.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    },
}

CASES = [
    Case("Gemma3TextModel", SMALL),
    Case("Gemma3TextModel", SMALL | {"query_pre_attn_scalar": 25}, "scores scaled", lengths=(130, 3, 77, 64)),
    Case(
        "Gemma3TextModel",
        SMALL | {"sliding_window": 2, "attention_bias": True},
        "window of one token",
    ),
    Case(
        "Gemma3TextModel",
        SMALL | {"sliding_window": 200, "num_key_value_heads": 4},
        "wide windows",
    ),
    Case("Gemma3TextModel", SMALL | STRETCHED, "stretched"),
    Case("Gemma3TextModel", TINY | WHOLE, "causal"),
    Case("Gemma3TextModel", TINY | {"hidden_activation": "silu", "rms_norm_eps": 0.01}, "one layer, silu"),
    Case("Gemma3ForCausalLM", TINY | WHOLE, "tied"),
    Case("Gemma3ForCausalLM", SMALL | {"tie_word_embeddings": False}, "untied, both directions"),
    Case("Gemma3TextForSequenceClassification", SMALL | {"num_labels": 5}),
]

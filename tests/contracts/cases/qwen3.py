"""Qwen3: every class with a head that is built; heads of keys as many, fewer and one; YaRN."""

from tests.contracts.cases import Case

IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1}
SMALL = IDS | {
    "hidden_size": 24,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 11,
    "num_hidden_layers": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 250_000.0},
}
TINY = IDS | {
    "hidden_size": 4,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "intermediate_size": 3,
    "num_hidden_layers": 1,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 4.0,
}

CASES = [
    Case("Qwen3Model", SMALL),
    Case("Qwen3Model", SMALL | {"num_key_value_heads": 1}, "one head of keys", lengths=(130, 3, 77, 64)),
    Case("Qwen3Model", SMALL | {"num_key_value_heads": 6, "attention_bias": True}, "biases"),
    Case("Qwen3Model", SMALL | {"rope_parameters": YARN}, "YaRN", lengths=(1, 90, 33)),
    Case(
        "Qwen3Model",
        SMALL | {"rope_parameters": YARN | {"attention_factor": 1.3, "truncate": False}},
        "YaRN 2",
    ),
    Case("Qwen3Model", TINY | {"hidden_act": "gelu", "rms_norm_eps": 0.01}, "one layer, gelu"),
    Case("Qwen3ForCausalLM", SMALL),
    Case("Qwen3ForCausalLM", TINY | {"tie_word_embeddings": True}, "tied"),
    Case("Qwen3ForSequenceClassification", SMALL | {"num_labels": 5}),
    Case("Qwen3ForSequenceClassification", TINY | {"num_labels": 1}, "a score"),
    Case("Qwen3ForTokenClassification", SMALL | {"num_labels": 7}),
]

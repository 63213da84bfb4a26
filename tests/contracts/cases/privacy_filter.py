"""openai/privacy-filter: both classes; windows shorter than texts; YaRN on and off; one expert and all."""

from tests.contracts.cases import Case

IDS = {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1}
SMALL = IDS | {
    "hidden_size": 20,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 11,
    "num_hidden_layers": 3,
    "num_local_experts": 5,
    "num_experts_per_tok": 2,
    "sliding_window": 3,
}
TINY = IDS | {
    "hidden_size": 4,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 2,
    "intermediate_size": 3,
    "num_hidden_layers": 1,
    "num_local_experts": 1,
    "num_experts_per_tok": 1,
}
ROPE = {"rope_type": "default", "rope_theta": 1000.0}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 10_000.0,
    "original_max_position_embeddings": 16,
    "beta_fast": 4.0,
}

CASES = [
    Case("OpenAIPrivacyFilterModel", SMALL),
    Case("OpenAIPrivacyFilterModel", SMALL | {"rope_parameters": ROPE}, "no YaRN", lengths=(1, 90, 33)),
    Case("OpenAIPrivacyFilterModel", SMALL | {"rope_parameters": YARN}, "YaRN", lengths=(130, 3, 77, 64)),
    Case(
        "OpenAIPrivacyFilterModel",
        SMALL | {"num_key_value_heads": 6, "attention_bias": False, "sliding_window": 40},
        "no biases",
        lengths=(1, 60, 40, 41, 42),
    ),
    Case("OpenAIPrivacyFilterModel", SMALL | {"swiglu_alpha": 0.7, "swiglu_limit": 0.2}, "clamped"),
    Case("OpenAIPrivacyFilterModel", SMALL | {"num_experts_per_tok": 5}, "all experts"),
    Case("OpenAIPrivacyFilterModel", TINY | {"rms_norm_eps": 0.01}, "one expert"),
    Case("OpenAIPrivacyFilterForTokenClassification", SMALL),
    Case("OpenAIPrivacyFilterForTokenClassification", TINY | {"num_labels": 7}, "seven labels"),
    Case("OpenAIPrivacyFilterForTokenClassification", TINY | {"num_labels": 2}, "two labels"),
]

"""Encoders of T5: plain and gated networks, heads wider than their share, few buckets, long texts."""

from tests.contracts.cases import Case

SMALL = {"d_model": 15, "d_kv": 4, "d_ff": 22, "num_layers": 3, "num_heads": 5}
TINY = {"d_model": 8, "d_kv": 6, "d_ff": 5, "num_layers": 1, "num_heads": 1}
GATED = {"feed_forward_proj": "gated-gelu"}

CASES = [
    Case("T5EncoderModel", SMALL, "relu"),
    Case("T5EncoderModel", SMALL | GATED | {"dropout_rate": 0.3}, "gated"),
    Case(
        "T5EncoderModel", TINY | {"feed_forward_proj": "gated-silu", "layer_norm_epsilon": 1e-3}, "silu gate"
    ),
    Case("T5EncoderModel", TINY | {"feed_forward_proj": "gelu"}, "every bucket", lengths=(300, 2, 130, 17)),
    Case(
        "T5EncoderModel",
        SMALL | {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 9},
        "few buckets",
    ),
    Case("T5ForTokenClassification", SMALL | GATED | {"num_labels": 7}),
]

"""DeBERTa v2 and v3: merged and whole distances, shared and own projections, the convolution, every head."""

from tests.contracts.cases import Case

SIZES = {"hidden_size": 15, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
ONE_HEAD = {"hidden_size": 7, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
BOTH = {"relative_attention": True, "pos_att_type": "p2c|c2p", "position_biased_input": False}
V3 = BOTH | {"position_buckets": 8, "max_relative_positions": 32, "share_att_key": True}
V3 |= {"norm_rel_ebd": "layer_norm"}
CONVOLUTION = {"conv_kernel_size": 3, "conv_act": "gelu"}
ENHANCED = {"enhanced": "logits"}
LONG = (1, 30, 77)

CASES = [
    Case("DebertaV2Model", SIZES | V3, "distances within the training's"),
    Case("DebertaV2Model", SIZES | V3, "distances beyond the training's", compat="hf", lengths=LONG),
    Case("DebertaV2Model", SIZES | V3 | {"position_buckets": 7}, "odd buckets", compat="hf", lengths=LONG),
    Case("DebertaV2Model", SIZES | BOTH | {"max_relative_positions": 9}, "no buckets, own projections"),
    Case("DebertaV2Model", SIZES | V3 | CONVOLUTION | {"attention_head_size": 3}, "convolution"),
    Case(
        "DebertaV2Model",
        ONE_HEAD | V3 | {"conv_kernel_size": 5, "conv_groups": 7, "norm_rel_ebd": "none"},
        "wide grouped convolution by tanh, bare table",
        lengths=(1, 2, 4, 9),
    ),
    Case("DebertaV2Model", SIZES | V3 | {"pos_att_type": ["c2p"], "embedding_size": 6}, "c2p, narrow words"),
    Case("DebertaV2Model", SIZES | V3 | {"pos_att_type": "p2c", "share_att_key": False}, "p2c, own"),
    Case("DebertaV2Model", SIZES | V3 | {"pos_att_type": None}, "a table without terms"),
    Case(
        "DebertaV2Model",
        SIZES | {"max_position_embeddings": 23, "type_vocab_size": 2, "hidden_act": "silu"},
        "absolute positions, no distances, silu",
    ),
    Case(
        "DebertaV2Model",
        SIZES | {"norm_rel_ebd": "layer_norm"},
        "a norm of no distances",
        unused=("encoder.LayerNorm.",),
    ),
    Case("DebertaV2ForMaskedLM", SIZES | V3 | {"embedding_size": 9}, "narrow words"),
    Case("DebertaV2ForMaskedLM", SIZES | V3 | {"tie_word_embeddings": False}, "untied"),
    Case("DebertaV2ForMaskedLM", SIZES | V3 | {"legacy": False}, "legacy=False", logits=ENHANCED),
    Case(
        "DebertaV2ForSequenceClassification",
        SIZES | V3 | CONVOLUTION | {"num_labels": 1, "pooler_hidden_act": "tanh"},
        "one number, tanh pooler",
    ),
    Case("DebertaV2ForTokenClassification", ONE_HEAD | V3 | {"num_labels": 7}),
    Case("DebertaV2ForQuestionAnswering", SIZES | V3),
    Case("DebertaV2ForMultipleChoice", SIZES | V3 | {"pooler_hidden_act": "tanh"}, "tanh"),
]

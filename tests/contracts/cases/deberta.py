"""DeBERTa: every class with a head, every choice of terms, with and without absolute positions."""

from tests.contracts.cases import Case

SIZES = {"hidden_size": 15, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
ONE_HEAD = {"hidden_size": 7, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
BOTH = {"relative_attention": True, "pos_att_type": "c2p|p2c", "position_biased_input": False}
ENHANCED = {"enhanced": "logits"}

CASES = [
    Case("DebertaModel", SIZES | BOTH, "lengths within the table"),
    Case("DebertaModel", SIZES | BOTH | {"max_relative_positions": 9}, "beyond the table"),
    Case("DebertaModel", SIZES | BOTH | {"max_relative_positions": 9}, "beyond the table", compat="hf"),
    Case(
        "DebertaModel",
        ONE_HEAD
        | {"relative_attention": True, "pos_att_type": ["c2p"], "max_position_embeddings": 23}
        | {"type_vocab_size": 3},
        "c2p, absolute positions, three segments",
    ),
    Case("DebertaModel", SIZES | BOTH | {"pos_att_type": ["p2c"], "embedding_size": 6}, "p2c, narrow words"),
    Case("DebertaModel", SIZES | {"relative_attention": True}, "a table without terms"),
    Case("DebertaModel", SIZES | {"hidden_act": "relu", "layer_norm_eps": 1e-5}, "no distances, relu"),
    Case("DebertaForMaskedLM", SIZES | BOTH | {"embedding_size": 9}, "narrow words"),
    Case("DebertaForMaskedLM", SIZES | BOTH | {"tie_word_embeddings": False}, "untied"),
    Case("DebertaForMaskedLM", SIZES | BOTH | {"legacy": False}, "legacy=False", logits=ENHANCED),
    Case("DebertaForSequenceClassification", SIZES | BOTH | {"num_labels": 4}),
    Case("DebertaForTokenClassification", SIZES | BOTH | {"num_labels": 7}),
    Case("DebertaForQuestionAnswering", ONE_HEAD | BOTH),
]

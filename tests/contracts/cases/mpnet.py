"""MPNet: every class with a head; positions that the text just fills, distances in every bucket."""

from tests.contracts.cases import Case

SMALL = {"hidden_size": 15, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
TRAINING = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.07}

CASES = [
    Case("MPNetModel", SMALL | TRAINING | {"max_position_embeddings": 25}, "full table"),
    Case("MPNetModel", TINY | {"hidden_act": "silu"}, "every bucket", lengths=(300, 2, 130, 17)),
    Case("MPNetModel", TINY | {"pad_token_id": 4}, "pad 4, which moves no position"),
    Case("MPNetForMaskedLM", SMALL | {"hidden_act": "relu", "layer_norm_eps": 1e-5}, "relu"),
    Case("MPNetForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied"),
    Case("MPNetForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("MPNetForSequenceClassification", TINY | {"num_labels": 1}, "a score"),
    Case("MPNetForTokenClassification", SMALL | {"num_labels": 7}),
    Case("MPNetForQuestionAnswering", TINY),
    Case("MPNetForMultipleChoice", SMALL),
]

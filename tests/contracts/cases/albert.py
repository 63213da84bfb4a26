"""ALBERT: groups, inner layers, groups that do not divide the layers; every class with a head."""

from tests.contracts.cases import Case

SMALL = {
    "hidden_size": 15,
    "num_attention_heads": 5,
    "intermediate_size": 22,
    "num_hidden_layers": 3,
    "embedding_size": 6,
    "max_position_embeddings": 23,
}
TINY = {
    "hidden_size": 8,
    "num_attention_heads": 1,
    "intermediate_size": 5,
    "num_hidden_layers": 1,
    "embedding_size": 8,
}
UNEVEN = {"num_hidden_layers": 5, "num_hidden_groups": 3, "inner_group_num": 2}
TRAINING = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.07}

CASES = [
    Case("AlbertModel", SMALL | TRAINING),
    Case("AlbertModel", TINY | {"type_vocab_size": 1, "hidden_act": "relu"}, "one segment, relu, E = D"),
    Case("AlbertModel", SMALL | {"num_hidden_groups": 3}, "each its own"),
    Case("AlbertModel", SMALL | UNEVEN, "5 passes over 3 groups of 2"),
    Case("AlbertModel", SMALL | {"inner_group_num": 3}, "3 passes over a group of 3"),
    Case("AlbertForPreTraining", SMALL | {"num_labels": 2}),
    Case("AlbertForPreTraining", SMALL | UNEVEN | {"hidden_act": "gelu", "layer_norm_eps": 1e-5}, "groups"),
    Case("AlbertForMaskedLM", TINY | {"embedding_size": 11}, "E above D"),
    Case("AlbertForMaskedLM", TINY | {"embedding_size": 11, "tie_word_embeddings": False}, "untied"),
    Case("AlbertForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("AlbertForTokenClassification", SMALL | {"num_labels": 7, "num_hidden_groups": 2}, "2 groups"),
    Case("AlbertForQuestionAnswering", TINY),
    Case("AlbertForMultipleChoice", SMALL | UNEVEN),
]

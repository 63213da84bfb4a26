"""DistilBERT: every class with a head; untied words, fixed positions, one layer."""

from tests.contracts.cases import Case

SMALL = {"dim": 15, "n_heads": 5, "hidden_dim": 22, "n_layers": 3}
TINY = {"dim": 8, "n_heads": 1, "hidden_dim": 5, "n_layers": 1}
TRAINING = {"dropout": 0.2, "attention_dropout": 0.3, "initializer_range": 0.07}

CASES = [
    Case("DistilBertModel", SMALL | TRAINING | {"max_position_embeddings": 23}),
    Case("DistilBertModel", TINY | {"sinusoidal_pos_embds": True, "activation": "relu"}, "sinusoids, relu"),
    Case("DistilBertForMaskedLM", SMALL),
    Case("DistilBertForMaskedLM", TINY | {"tie_word_embeddings": False, "activation": "silu"}, "untied"),
    Case("DistilBertForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("DistilBertForSequenceClassification", TINY | {"num_labels": 1, "activation": "silu"}, "a score"),
    Case("DistilBertForTokenClassification", SMALL | {"num_labels": 7}),
    Case("DistilBertForQuestionAnswering", TINY),
    Case("DistilBertForMultipleChoice", SMALL | {"activation": "silu"}, "silu"),
]

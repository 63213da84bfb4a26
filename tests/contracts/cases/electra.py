"""ELECTRA: generators and discriminators, embeddings narrower, wider and as wide as the encoder."""

from tests.contracts.cases import Case

SMALL = {"hidden_size": 15, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
TRAINING = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.07}

CASES = [
    Case("ElectraModel", SMALL | {"embedding_size": 6, "max_position_embeddings": 23}, "E below D"),
    Case("ElectraModel", SMALL | TRAINING | {"embedding_size": 15, "type_vocab_size": 1}, "E = D"),
    Case("ElectraForPreTraining", SMALL | {"embedding_size": 15}, "E = D"),
    Case("ElectraForPreTraining", TINY | {"embedding_size": 3, "hidden_act": "relu"}, "relu"),
    Case("ElectraForMaskedLM", SMALL | {"embedding_size": 22}, "E above D"),
    Case("ElectraForMaskedLM", TINY | {"embedding_size": 8, "hidden_act": "relu"}, "relu"),
    Case("ElectraForMaskedLM", SMALL | {"embedding_size": 7, "tie_word_embeddings": False}, "untied"),
    Case("ElectraForSequenceClassification", SMALL | {"embedding_size": 6, "num_labels": 4}),
    Case("ElectraForSequenceClassification", TINY | {"embedding_size": 8, "hidden_act": "relu"}, "relu"),
    Case("ElectraForTokenClassification", SMALL | {"embedding_size": 6, "num_labels": 7}),
    Case("ElectraForCausalLM", SMALL | {"embedding_size": 7, "is_decoder": True}, "causal"),
    Case("ElectraForQuestionAnswering", TINY | {"embedding_size": 9, "layer_norm_eps": 1e-5}),
    Case("ElectraForMultipleChoice", SMALL | {"embedding_size": 6, "hidden_act": "relu"}, "relu"),
]

"""RoBERTa, XLM-R, CamemBERT, data2vec: every class with a head; other padding ids, a table that is full."""

from tests.contracts.cases import Case

SMALL = {"hidden_size": 15, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
TRAINING = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.07}

CASES = [
    Case(
        "RobertaModel", SMALL | TRAINING | {"max_position_embeddings": 25, "type_vocab_size": 1}, "full table"
    ),
    Case("RobertaModel", TINY | {"pad_token_id": 4, "type_vocab_size": 3, "hidden_act": "silu"}, "pad 4"),
    Case("RobertaForMaskedLM", SMALL | {"hidden_act": "relu", "layer_norm_eps": 1e-5}, "relu"),
    Case("RobertaForMaskedLM", TINY | {"pad_token_id": 0}, "pad 0"),
    Case("RobertaForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied"),
    Case("RobertaForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("RobertaForSequenceClassification", TINY | {"num_labels": 1}, "a score"),
    Case("RobertaForTokenClassification", SMALL | {"num_labels": 7}),
    Case("RobertaForQuestionAnswering", TINY),
    Case("RobertaForCausalLM", TINY | {"is_decoder": True}, "causal"),
    Case("RobertaForMultipleChoice", SMALL),
    Case("XLMRobertaModel", TINY | {"type_vocab_size": 1}),
    Case("XLMRobertaForMaskedLM", SMALL | {"layer_norm_eps": 1e-5}),
    Case("XLMRobertaForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied"),
    Case("XLMRobertaForSequenceClassification", SMALL | {"num_labels": 5}),
    Case("XLMRobertaForTokenClassification", TINY | {"num_labels": 9}),
    Case("XLMRobertaForQuestionAnswering", SMALL),
    Case("XLMRobertaForMultipleChoice", TINY),
    Case("CamembertModel", SMALL),
    Case("CamembertForMaskedLM", TINY | {"type_vocab_size": 1}),
    Case("CamembertForSequenceClassification", TINY | {"num_labels": 3}),
    Case("CamembertForTokenClassification", SMALL | {"num_labels": 2}),
    Case("CamembertForQuestionAnswering", SMALL),
    Case("CamembertForMultipleChoice", TINY),
    Case("Data2VecTextModel", SMALL | {"max_position_embeddings": 25, "type_vocab_size": 1}, "full table"),
    Case("Data2VecTextForMaskedLM", TINY | {"pad_token_id": 4, "type_vocab_size": 3}, "pad 4"),
    Case("Data2VecTextForMaskedLM", SMALL | {"tie_word_embeddings": False}, "untied"),
    Case("Data2VecTextForCausalLM", TINY | {"is_decoder": True}, "causal"),
    Case("Data2VecTextForSequenceClassification", TINY | {"num_labels": 3}),
    Case("Data2VecTextForTokenClassification", SMALL | {"num_labels": 2}),
    Case("Data2VecTextForQuestionAnswering", SMALL),
    Case("Data2VecTextForMultipleChoice", TINY),
]

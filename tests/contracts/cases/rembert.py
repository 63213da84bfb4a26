"""RemBERT: every class with a head; words predicted at a width above, below and equal to the encoder's."""

from tests.contracts.cases import Case

SMALL = {"hidden_size": 15, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
SMALL |= {"input_embedding_size": 6, "output_embedding_size": 19}
TINY |= {"input_embedding_size": 8, "output_embedding_size": 8}
TRAINING = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.07}

CASES = [
    Case("RemBertModel", SMALL | TRAINING | {"max_position_embeddings": 23}),
    Case("RemBertModel", TINY | {"type_vocab_size": 1, "hidden_act": "relu"}, "one segment, relu"),
    Case("RemBertForMaskedLM", SMALL | {"layer_norm_eps": 1e-3}, "wide"),
    Case("RemBertForMaskedLM", TINY | {"output_embedding_size": 3, "hidden_act": "relu"}, "narrow, relu"),
    Case("RemBertForMaskedLM", TINY | {"tie_word_embeddings": True}, "said to be tied"),
    Case("RemBertForCausalLM", SMALL | {"is_decoder": True}, "causal"),
    Case("RemBertForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("RemBertForTokenClassification", SMALL | {"num_labels": 7}),
    Case("RemBertForQuestionAnswering", TINY),
    Case("RemBertForMultipleChoice", SMALL),
]

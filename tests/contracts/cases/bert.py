"""BERT and ERNIE: every class with a head; odd head counts, one layer, one segment, other activations."""

from tests.contracts.cases import Case

SMALL = {"hidden_size": 15, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}

CASES = [
    Case("BertModel", SMALL | {"max_position_embeddings": 23}),
    Case("BertModel", TINY | {"type_vocab_size": 1, "hidden_act": "relu"}, "one segment, relu"),
    Case("BertForPreTraining", SMALL | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}, "gelu_new"),
    Case("BertForMaskedLM", TINY),
    Case("BertForPreTraining", SMALL | {"tie_word_embeddings": False}, "untied"),
    Case("BertForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied"),
    Case("BertForNextSentencePrediction", SMALL),
    Case("BertLMHeadModel", SMALL | {"is_decoder": True}, "causal"),
    Case("BertModel", TINY | {"is_decoder": True}, "causal"),
    Case("BertForSequenceClassification", SMALL | {"is_decoder": True}, "causal"),
    Case("BertForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("BertForTokenClassification", SMALL | {"num_labels": 7}),
    Case("BertForQuestionAnswering", TINY),
    Case("BertForMultipleChoice", SMALL | {"num_labels": 4}),
    Case("ErnieModel", SMALL | {"use_task_id": True, "max_position_embeddings": 23}, "tasks"),
    Case("ErnieModel", TINY | {"task_type_vocab_size": 5, "type_vocab_size": 4}, "no tasks"),
    Case("ErnieForPreTraining", TINY | {"use_task_id": True, "task_type_vocab_size": 5}, "5 tasks"),
    Case("ErnieForMaskedLM", SMALL | {"use_task_id": True, "hidden_act": "relu"}, "relu"),
    Case("ErnieForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied"),
    Case("ErnieForNextSentencePrediction", SMALL | {"use_task_id": True}),
    Case("ErnieForCausalLM", SMALL | {"is_decoder": True, "use_task_id": True}, "causal"),
    Case("ErnieForSequenceClassification", SMALL | {"num_labels": 4, "use_task_id": True}),
    Case("ErnieForTokenClassification", SMALL | {"num_labels": 7, "task_type_vocab_size": 1}),
    Case("ErnieForQuestionAnswering", TINY | {"use_task_id": True}),
    Case("ErnieForMultipleChoice", SMALL | {"use_task_id": True}),
]

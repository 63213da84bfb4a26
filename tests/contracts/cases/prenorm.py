"""XLM-R XL, pre-norm RoBERTa, Megatron-BERT: every class with a head; padding ids, eps, a full table."""

from tests.contracts.cases import Case

SMALL = {"hidden_size": 15, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
TRAINING = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.07}


def roberta_classes(stem: str) -> list[Case]:
    return [
        Case(f"{stem}Model", SMALL | TRAINING | {"max_position_embeddings": 25}, "full table"),
        Case(f"{stem}Model", TINY | {"pad_token_id": 4, "type_vocab_size": 3, "hidden_act": "silu"}, "pad 4"),
        Case(f"{stem}ForMaskedLM", SMALL | {"hidden_act": "relu", "layer_norm_eps": 1e-3}, "relu"),
        Case(f"{stem}ForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied"),
        Case(f"{stem}ForCausalLM", TINY | {"is_decoder": True}, "causal"),
        Case(f"{stem}ForSequenceClassification", SMALL | {"num_labels": 4}),
        Case(f"{stem}ForTokenClassification", SMALL | {"num_labels": 7}),
        Case(f"{stem}ForQuestionAnswering", TINY),
        Case(f"{stem}ForMultipleChoice", SMALL),
    ]


CASES = [
    *roberta_classes("XLMRobertaXL"),
    *roberta_classes("RobertaPreLayerNorm"),
    Case("MegatronBertModel", SMALL | TRAINING | {"max_position_embeddings": 23}),
    Case("MegatronBertModel", TINY | {"type_vocab_size": 1, "hidden_act": "relu"}, "one segment, relu"),
    Case("MegatronBertForPreTraining", SMALL | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-3}),
    Case("MegatronBertForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied"),
    Case("MegatronBertForMaskedLM", SMALL),
    Case("MegatronBertForCausalLM", SMALL | {"is_decoder": True}, "causal"),
    Case("MegatronBertForNextSentencePrediction", SMALL),
    Case("MegatronBertForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("MegatronBertForTokenClassification", SMALL | {"num_labels": 7}),
    Case("MegatronBertForQuestionAnswering", TINY),
    Case("MegatronBertForMultipleChoice", SMALL),
]

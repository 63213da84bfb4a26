"""ConvBERT: every class with a head; kernels, groups and ratios of heads; embeddings of other widths."""

from tests.contracts.cases import Case

SMALL = {"hidden_size": 18, "num_attention_heads": 7, "intermediate_size": 21, "num_hidden_layers": 3}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
SMALL |= {"embedding_size": 6, "conv_kernel_size": 5, "num_groups": 3}
TINY |= {"embedding_size": 8}
TRAINING = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.07}
FIRST = {"summary_type": "first"}

CASES = [
    Case("ConvBertModel", SMALL | TRAINING | {"max_position_embeddings": 23}, "groups, E below D"),
    Case("ConvBertModel", TINY | {"conv_kernel_size": 1, "type_vocab_size": 1}, "kernel of one token"),
    Case("ConvBertModel", SMALL | {"head_ratio": 1, "num_attention_heads": 3, "num_groups": 1}, "all heads"),
    Case("ConvBertModel", SMALL | {"head_ratio": 4, "hidden_act": "relu"}, "ratio 4, relu"),
    Case("ConvBertForMaskedLM", SMALL | {"conv_kernel_size": 9, "layer_norm_eps": 1e-3}),
    Case("ConvBertForMaskedLM", TINY | {"embedding_size": 11, "tie_word_embeddings": False}, "untied"),
    Case("ConvBertForSequenceClassification", SMALL | {"num_labels": 4, "hidden_act": "relu"}, "relu"),
    Case("ConvBertForTokenClassification", SMALL | {"num_labels": 7}),
    Case("ConvBertForQuestionAnswering", TINY),
    Case("ConvBertForMultipleChoice", SMALL | FIRST),
]

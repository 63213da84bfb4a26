"""MobileBERT: every class with a head; bottlenecks of each kind and none, stacks, norms, neighbors."""

from tests.contracts.cases import Case

SMALL = {
    "hidden_size": 18,
    "num_attention_heads": 3,
    "intra_bottleneck_size": 12,
    "intermediate_size": 21,
    "num_hidden_layers": 3,
    "embedding_size": 7,
    "num_feedforward_networks": 3,
}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
TINY |= {"embedding_size": 3, "intra_bottleneck_size": 2}
TRAINING = {"hidden_dropout_prob": 0.2, "attention_probs_dropout_prob": 0.3, "initializer_range": 0.07}
NARROW = {"use_bottleneck_attention": True, "key_query_shared_bottleneck": False}
WIDE = {"use_bottleneck": False, "num_feedforward_networks": 2}
OWN = {"classifier_activation": False}
NORMED = {"normalization_type": "layer_norm", "layer_norm_eps": 1e-5}
UNREAD = tuple(f"encoder.layer.{layer}.bottleneck.attention" for layer in range(3))

CASES = [
    Case("MobileBertModel", SMALL | TRAINING | {"max_position_embeddings": 23}, "shared"),
    Case("MobileBertModel", SMALL | NARROW | NORMED | {"hidden_act": "gelu"}, "narrow, layer norms"),
    Case("MobileBertModel", SMALL | {"use_bottleneck_attention": True}, "an unread map", unused=UNREAD),
    Case("MobileBertModel", SMALL | WIDE | {"trigram_input": False}, "no bottleneck, no neighbors"),
    Case(
        "MobileBertModel",
        TINY | {"intra_bottleneck_size": 8, "key_query_shared_bottleneck": False, "type_vocab_size": 1},
        "reads its input",
    ),
    Case("MobileBertForMaskedLM", SMALL | OWN | {"layer_norm_eps": 1e-3, "hidden_act": "gelu"}, "gelu"),
    Case("MobileBertForMaskedLM", TINY | NORMED | {"tie_word_embeddings": False}, "untied"),
    Case("MobileBertForPreTraining", SMALL | OWN, "no pooler"),
    Case("MobileBertForPreTraining", SMALL | WIDE, "pooler"),
    Case("MobileBertForNextSentencePrediction", TINY),
    Case("MobileBertForSequenceClassification", SMALL | OWN | {"num_labels": 4}, "no pooler"),
    Case("MobileBertForSequenceClassification", SMALL | NORMED | {"num_labels": 4}, "pooler"),
    Case("MobileBertForTokenClassification", SMALL | {"num_labels": 7, "num_feedforward_networks": 1}),
    Case("MobileBertForQuestionAnswering", TINY),
    Case("MobileBertForMultipleChoice", SMALL | OWN, "no pooler"),
    Case("MobileBertForMultipleChoice", TINY, "pooler"),
]

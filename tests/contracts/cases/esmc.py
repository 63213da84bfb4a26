"""ESM C: every class with a head, biases or none, depths above and below the one that is not scaled."""

from functools import partial

from tests.contracts.cases import Case as AnyCase

SMALL = {"hidden_size": 20, "num_attention_heads": 5, "intermediate_size": 22, "num_hidden_layers": 3}
TINY = {"hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 5, "num_hidden_layers": 1}
BIASED = {"attention_bias": True, "mlp_bias": True}
TRAINING = {"attention_dropout": 0.3, "initializer_range": 0.07}

Case = partial(AnyCase, vocabulary=11)

CASES = [
    Case("EsmcModel", SMALL | TRAINING | {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    Case("EsmcModel", TINY | BIASED | {"hidden_act": "gelu"}, "biases, gelu"),
    Case("EsmcModel", TINY | {"num_hidden_layers": 37}, "deeper than 36"),
    Case("EsmcForMaskedLM", SMALL),
    Case("EsmcForMaskedLM", TINY | BIASED | {"tie_word_embeddings": True}, "said to be tied"),
    Case("EsmcForSequenceClassification", SMALL | {"num_labels": 4}),
    Case("EsmcForSequenceClassification", TINY | {"num_labels": 1}, "a score"),
    Case("EsmcForTokenClassification", SMALL | {"num_labels": 7}),
]

"""BigBird: texts below and beyond the length from which blocks are sparse, of whole blocks and not.

Longest first: once a text is short, their model stays with whole attention. With ``compat="hf"`` theirs is
run as it is in evaluation; as published, in training without dropout, where alone it draws blocks.
"""

from tests.contracts.cases import Case

SMALL = {
    "hidden_size": 15,
    "num_attention_heads": 5,
    "intermediate_size": 22,
    "num_hidden_layers": 3,
    "block_size": 2,
    "num_random_blocks": 2,
    "max_position_embeddings": 90,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
"""Whole up to 18 tokens."""
TINY = SMALL | {"hidden_size": 6, "num_attention_heads": 1, "num_hidden_layers": 1, "num_random_blocks": 1}
BARE = SMALL | {"use_bias": False, "block_size": 3, "num_random_blocks": 3, "hidden_act": "relu"}
"""Whole up to 33 tokens."""
PLANNED = TINY | {
    "hidden_size": 4,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "block_size": 64,
    "num_random_blocks": 3,
    "max_position_embeddings": 4096,
}
"""As published, but narrow: texts of 16 blocks have their plan made for 4,096 tokens."""
LENGTHS = (40, 37, 19, 20, 18, 1)


def both(model, settings, label="", **more):
    """As in evaluation and as in training."""
    more = {"lengths": LENGTHS} | more
    return [
        Case(model, settings, label, "hf", **more),
        Case(model, settings, label, "published", training=True, **more),
    ]


CASES = [
    *both("BigBirdModel", SMALL),
    *both("BigBirdModel", BARE, "no biases, relu", lengths=(67, 34, 33)),
    *both("BigBirdModel", PLANNED, "planned lengths", lengths=(1000, 1090)),
    Case("BigBirdModel", SMALL | {"attention_type": "original_full"}, "whole", lengths=LENGTHS),
    *both("BigBirdForPreTraining", SMALL),
    *both("BigBirdForMaskedLM", TINY),
    Case("BigBirdForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied", "hf", lengths=LENGTHS),
    *both("BigBirdForSequenceClassification", SMALL | {"num_labels": 4}),
    *both("BigBirdForTokenClassification", SMALL | {"num_labels": 7}),
    *both("BigBirdForQuestionAnswering", SMALL),
    *both("BigBirdForMultipleChoice", SMALL),
]

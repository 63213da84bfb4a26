"""Longformer: a window a layer, odd lengths, global tokens anywhere, as each class sets them, and none.

Windows are smaller and larger than texts. Theirs pads texts to a multiple of the largest window, which all
others must divide; with a window of 2 it does not run.
"""

from tests.contracts.cases import Case

SMALL = {
    "hidden_size": 15,
    "num_attention_heads": 5,
    "intermediate_size": 22,
    "num_hidden_layers": 3,
    "attention_window": [4, 6, 12],
    "max_position_embeddings": 60,
    "type_vocab_size": 1,
    "pad_token_id": 1,
    "layer_norm_eps": 1e-5,
}
TINY = SMALL | {"hidden_size": 6, "num_attention_heads": 1, "num_hidden_layers": 1, "attention_window": 4}
WIDE = TINY | {"attention_window": 40, "type_vocab_size": 3, "pad_token_id": 0, "hidden_act": "gelu_new"}
LENGTHS = (1, 24, 4, 37)

CASES = [
    Case("LongformerModel", SMALL, "no global token", lengths=LENGTHS),
    Case("LongformerModel", SMALL, "scattered", lengths=LENGTHS, global_tokens=(0, 2, 3, 19, 36)),
    Case("LongformerModel", SMALL, "all of a text", lengths=(4, 9), global_tokens=(0, 1, 2, 3)),
    Case("LongformerModel", WIDE, "wider than the text", lengths=LENGTHS, global_tokens=(5,)),
    Case("LongformerForMaskedLM", SMALL, lengths=LENGTHS),
    Case(
        "LongformerForMaskedLM", TINY | {"hidden_act": "relu"}, "relu", lengths=LENGTHS, global_tokens=(3, 0)
    ),
    Case("LongformerForMaskedLM", TINY | {"tie_word_embeddings": False}, "untied", lengths=LENGTHS),
    Case(
        "LongformerForSequenceClassification",
        SMALL | {"num_labels": 4},
        lengths=LENGTHS,
        global_tokens=(0,),
    ),
    Case("LongformerForTokenClassification", SMALL | {"num_labels": 7}, lengths=LENGTHS),
    Case("LongformerForQuestionAnswering", SMALL, lengths=LENGTHS, global_tokens=(0, 1, 2, 3, 4)),
    Case("LongformerForMultipleChoice", SMALL, lengths=LENGTHS, global_tokens=(2, 3, 4, 5, 6)),
]

"""Keys of config.json that change nothing here, and errors about a spec in the words of its config.json."""

import re
from collections.abc import Mapping
from typing import Any

WITHOUT_EFFECT: dict[str, str] = {
    "_name_or_path": "where it was saved from",
    "_num_labels": "labels of a task head",
    "add_pooling_layer": "tensors decide which parts there are",
    "architectures": "the class it was saved from; tensors decide which parts there are",
    "attn_implementation": "how its own library computes",
    "auto_map": "remote code, which is never run",
    "base_scale": "initialization of a variant that is refused",
    "bos_token": "the tokenizer defines it",
    "bos_token_id": "generation",
    "classifier_dropout": "training of a task head",
    "classifier_dropout_prob": "training of a task head",
    "classifier_init_range": "initialization",
    "cls_dropout": "training of a task head",
    "cls_token_id": "the tokenizer defines it",
    "default_theta": "a constant of its own library",
    "dense_seq_output": "how its own library computes",
    "decoder_start_token_id": "the decoder, which no encoder reads",
    "dense_act_fn": "feed_forward_proj says it",
    "deterministic_flash_attn": "how its own library computes",
    "dtype": "the files say it themselves",
    "embd_pdrop": "training; the dropout of layers is taken for the embedding too",
    "embedding_init_range": "fresh weights",
    "emb_pooler": "how its own library makes a text's vector; modules.json says it",
    "eos_token": "the tokenizer defines it",
    "eos_token_id": "generation",
    "finetuning_task": "a note",
    "flash_attention": "how its own library computes",
    "fused_bias_fc": "how its own library computes",
    "fused_dropout_add_ln": "how its own library computes",
    "gradient_checkpointing": "memory in training",
    "id2label": "labels of a task head, read where there is one",
    "initializer_cutoff_factor": "fresh weights",
    "initializer_factor": "fresh weights",
    "is_encoder_decoder": "the decoder, which no encoder reads",
    "is_gated_act": "feed_forward_proj says it",
    "label2id": "labels of a task head, read where there is one",
    "last_layer_subset": "how its own library computes",
    "layer_norm_eps": "read where the norms are LayerNorms under this name; elsewhere nothing reads it",
    "logn_attention_clip1": "attention scaled by the text's length, which is refused",
    "mask_token": "the tokenizer defines it",
    "mask_token_id": "the tokenizer defines it",
    "mlp_dropout": "training; dropout inside the feed-forward network is not built",
    "model_type": "already used to find the family",
    "n_positions": "how far its own code prepares angles",
    "num_decoder_layers": "the decoder, which no encoder reads",
    "onnx_export": "how its own library computes",
    "output_attentions": "what its own library returns",
    "output_hidden_states": "what its own library returns",
    "output_embedding_size": "the width of a masked-LM head, which its tensors have",
    "output_router_logits": "what its own library returns",
    "output_past": "what its own library returns",
    "pad_token": "the tokenizer defines it",
    "pad_vocab_size_multiple": "how vocab_size was chosen",
    "padding_idx": "another name of pad_token_id, which nothing reads",
    "pooler_dropout": "training of a task head",
    "pretraining_tp": "how its own library computes",
    "problem_type": "loss of a task head, read where there is one",
    "qa_dropout": "training of a task head",
    "reference_compile": "how its own library computes",
    "reorder_and_upcast_attn": "how its own library computes",
    "repad_logits_with_grad": "how its own library computes",
    "return_dict": "what its own library returns",
    "scale_decoder_outputs": "the decoder, which no encoder reads",
    "sep_token_id": "the tokenizer defines it",
    "seq_classif_dropout": "training of a task head",
    "sinusoidal_pos_embds": "how a table of positions began, which is stored",
    "sparse_pred_ignore_index": "loss of a masked-LM head",
    "sparse_prediction": "which tokens its own library gives logits",
    "summary_activation": "a multiple-choice head, read where there is one",
    "summary_first_dropout": "training of a task head",
    "summary_last_dropout": "training of a task head",
    "summary_proj_to_labels": "a multiple-choice head, read where there is one",
    "summary_type": "a multiple-choice head, read where there is one",
    "summary_use_proj": "a multiple-choice head, read where there is one",
    "task_specific_params": "generation",
    "tie_word_embeddings": "a masked-LM head",
    "tie_weights_": "a masked-LM head",
    "torch_dtype": "the files say it themselves",
    "transformers_version": "who wrote it",
    "unpad_inputs": "how its own library computes",
    "use_cache": "generation",
    "use_flash_attn": "how its own library computes",
    "use_memory_efficient_attention": "how its own library computes",
    "use_xentropy": "how its own library computes",
}
"""Keys that change no output of the encoder, and what they concern."""

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")
FIELD = re.compile(r"^(?:[A-Z]\w*\.)?(\w+) is ")
"""How an error about one field of a spec begins, such as ``Disentangled.buckets is 1``."""
MOST_KEYS = 4
LARGEST = 1 << 53
"""A larger number is named by the reader of its key."""


def in_words_of(config: Mapping[str, Any], sentence: str) -> str:
    """The sentence with the keys of the config whose values it is about.

    A field at its beginning gives way to the key of that value that is most like it. Keys of further numbers
    in the sentence are listed behind it, unless it names a key with that number.
    """
    said = {float(number) for number in NUMBER.findall(sentence)} - {0.0}
    keys = [key for key, value in config.items() if _number(value) in said]
    field = FIELD.match(sentence)
    if field is not None and field[1] not in config:
        value = NUMBER.match(sentence[field.end() :])
        own = [key for key in config if value is not None and _number(config[key]) == float(value[0])]
        like = [key for key in own if field[1] in key] or own
        if len(like) == 1:
            sentence = f"{like[0]} is {sentence[field.end() :]}"
    named = {_number(config[key]) for key in config if re.search(rf"\b{re.escape(key)}\b", sentence)}
    others = [f"{key} {config[key]}" for key in keys if _number(config[key]) not in named]
    return f"{sentence} (in config.json: {', '.join(others[:MOST_KEYS])})" if others else sentence


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > LARGEST:
        return None
    return float(value)

"""Small random BERT checkpoints, written by `transformers`, every size of them different."""

import json
import string

PIECES = (
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *string.ascii_lowercase,
    *(f"##{letter}" for letter in string.ascii_lowercase),
    *("the", "river", "bank", "was", "muddy", "a", "text", "another", "##s", "##ing", ".", ",", "!", "3"),
)
VOCABULARY = tuple(dict.fromkeys(PIECES))
"""What vocab.txt holds: special tokens, letters alone and inside words, and a few words."""

MAX_TOKENS = 23
WIDTH = 30
LAYERS = 3
HEADS = 5
SPARE_IDS = 4
"""Rows of the word table that the tokenizer does not use, as published checkpoints have."""

SENTENCE_FILES = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True},
    "sentence_bert_config.json": {"max_seq_length": MAX_TOKENS - 4, "do_lower_case": False},
}
"""Mean pooling, unit length, and texts of at most 19 tokens."""


def tiny_config(**changes):
    """The `transformers` config of a tiny BERT."""
    from transformers import BertConfig

    sizes = {
        "vocab_size": len(VOCABULARY) + SPARE_IDS,
        "hidden_size": WIDTH,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "intermediate_size": 37,
        "max_position_embeddings": MAX_TOKENS,
        "initializer_range": 0.4,
    }
    return BertConfig(**sizes | changes)


def tiny_bert(kind="BertModel", seed=0, **changes):
    """A random `transformers` model of the named class, in evaluation mode.

    Biases and norms are random too: at 0 and 1 a swapped pair of them would go unseen.
    """
    import torch
    import transformers

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = getattr(transformers, kind)(tiny_config(**changes)).eval()
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.data += 0.3 * torch.randn_like(parameter)
    return model


def write_tokenizer(folder, pieces=VOCABULARY):
    """vocab.txt, and nothing else."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")


def write_sentence_files(folder):
    """What `sentence-transformers` writes beside a model."""
    for name, value in SENTENCE_FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(value))


def write_checkpoint(folder, model=None, *, sentence=True):
    """A whole checkpoint folder; returns the folder."""
    (model or tiny_bert()).save_pretrained(folder)
    write_tokenizer(folder)
    if sentence:
        write_sentence_files(folder)
    return folder


def write_prompts(folder, prompts, max_tokens=30, **pooling):
    """A checkpoint that reads texts after prompts, as sentence-transformers writes them."""
    write_checkpoint(folder, tiny_bert(max_position_embeddings=max_tokens + 10))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": max_tokens}))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
    change_json(folder / "1_Pooling/config.json", **pooling)
    return folder


def change_json(path, **changes):
    """Set keys of a JSON object in a file; None takes the key away."""
    value = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: item for key, item in value.items() if item is not None}))


def change_tensors(folder, change):
    """Rewrite model.safetensors; ``change`` gets the dict of tensors and edits it."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})
    (folder / "unmask_checksums.json").unlink(missing_ok=True)  # the change is intended

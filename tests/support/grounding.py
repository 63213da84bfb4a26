"""Tiny checkpoints that check answers: ModernBERT with a classifier of tokens, and a tokenizer of bytes."""

import json

import tokenizers
import torch
import transformers

SENTENCES = [
    "Briefly answer the following question: Bear in mind that your response should be strictly based on the",
    "following passages: In case the passages do not contain the necessary information to answer, please",
    "reply with: Unable to answer based on given passages. output: Summarize the following text:",
    "Paris is the capital of France and has two million people. The river Seine crosses the city.",
]


def write_byte_tokenizer(folder, max_tokens=8192):
    """A tokenizer of bytes for pairs of texts, in a folder; returns the number of its words."""
    folder.mkdir(parents=True, exist_ok=True)
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(unk_token=None))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = tokenizers.decoders.ByteLevel()
    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=special,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    engine.train_from_iterator(SENTENCES, trainer)
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:0 [SEP]:0",
        special_tokens=[("[CLS]", 1), ("[SEP]", 2)],
    )
    engine.save(str(folder / "tokenizer.json"))
    tokens = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"}
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_tokens}
            | {f"{role}_token": token for role, token in tokens.items()}
        ),
        encoding="utf-8",
    )
    return engine.get_vocab_size()


def tiny_modernbert(size, max_tokens=8192, **changes):
    """The config of a tiny ModernBERT for that tokenizer."""
    return transformers.ModernBertConfig(
        vocab_size=size, hidden_size=24, num_attention_heads=3, intermediate_size=16, num_hidden_layers=3,
        local_attention=8, max_position_embeddings=max_tokens, pad_token_id=0, bos_token_id=1,
        eos_token_id=2, cls_token_id=1, sep_token_id=2, initializer_range=0.7, initializer_cutoff_factor=3.0,
        **changes,
    )  # fmt: skip


def write_grounder(folder, *, max_tokens=8192, seed=0, num_labels=2):
    """A random ModernBERT for tokens and its byte-level tokenizer; returns the folder."""
    config = tiny_modernbert(write_byte_tokenizer(folder, max_tokens), max_tokens, num_labels=num_labels)
    torch.manual_seed(seed)
    transformers.ModernBertForTokenClassification(config).eval().save_pretrained(folder)
    return folder

"""Two small tokenizers of unlike kinds: whole words and letters, and bytes in merged pieces."""

import json
import string

import tokenizers

from unmask.text import Tokenizer


def of_pieces():
    """WordPiece that keeps case and accents; what it does not know is [UNK]."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river", "bank", "日"]
    for letter in string.ascii_letters + string.digits + "é.,!'":
        pieces += [letter, f"##{letter}"]
    files = {
        "vocab.txt": "\n".join(pieces).encode(),
        "tokenizer_config.json": json.dumps(
            {"tokenizer_class": "BertTokenizer", "do_lower_case": False}
        ).encode(),
    }
    return Tokenizer.from_files(files)


def of_bytes():
    """Byte-level BPE with a few merges, so that one character can be several tokens."""
    engine = tokenizers.Tokenizer(tokenizers.models.BPE())
    engine.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    engine.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<s>", "</s>", "<unk>", "<pad>", "<mask>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = "the river bank was muddy and the banker banked there. Don't 3.14, 日本 日本 é é"
    engine.train_from_iterator([text] * 4, trainer)
    ends = [(name, engine.token_to_id(name)) for name in ("<s>", "</s>")]
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B:1 </s>:1", special_tokens=ends
    )
    config = {"unk_token": "<unk>", "mask_token": "<mask>", "pad_token": "<pad>"}
    files = {
        "tokenizer.json": engine.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }
    return Tokenizer.from_files(files)

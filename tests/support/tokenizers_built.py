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


def write_eurobert(folder, *, ends=True):
    """Files like EuroBERT's: Llama 3's byte pairs, its ends of a text, and padding that is the end of a text.

    Without ``ends``, a text only begins with a token, as in Llama's own file.
    """
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
    split = tokenizers.Regex(
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    level = tokenizers.pre_tokenizers.ByteLevel
    engine = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=True))
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Split(split, "isolated"),
            level(add_prefix_space=False, use_regex=False),
        ]
    )
    engine.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, special_tokens=[], initial_alphabet=level.alphabet(), show_progress=False
    )
    engine.train_from_iterator(["the river bank, le bord de la rivière; 日本 1234"] * 4, trainer)
    engine.add_special_tokens(names)  # after all pieces, as in Llama's vocabulary
    first, last = names[0], f" {names[1]}" if ends else ""
    template = tokenizers.processors.TemplateProcessing(
        single=f"{first} $A{last}",
        pair=f"{first} $A{last} {first}:1 $B:1{last and f'{last}:1'}",
        special_tokens=[(name, engine.token_to_id(name)) for name in names[:2]],
    )
    engine.post_processor = tokenizers.processors.Sequence(
        [tokenizers.processors.ByteLevel(trim_offsets=True), template]
    )
    config = {
        "bos_token": names[0],
        "eos_token": names[1],
        "pad_token": names[1],
        "mask_token": names[2],
        "clean_up_tokenization_spaces": True,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": 1_000_000_000_000_000_019_884_624_838_656,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer.json").write_text(engine.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return engine


def write_mmbert(folder):
    """Files like mmBERT's: Gemma 2's pieces, bytes for what it lacks, no space before a text."""
    named = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    pieces = ["▁", "the", "▁the", "river", "▁river", "bank", "▁bank", "日", "本", *"abdehiknrtv,."]
    vocabulary = {}
    for piece in (*named, *(f"<0x{byte:02X}>" for byte in range(256)), *pieces):
        vocabulary.setdefault(piece, len(vocabulary))
    merges = [("t", "h"), ("th", "e")]
    vocabulary.setdefault("th", len(vocabulary))
    engine = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab=vocabulary, merges=merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True
        )
    )
    engine.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    engine.pre_tokenizer = tokenizers.pre_tokenizers.Split(" ", "merged_with_previous")
    engine.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
        ]
    )
    engine.add_special_tokens(named)
    engine.post_processor = tokenizers.processors.TemplateProcessing(
        single="<bos> $A <eos>",
        pair="<bos> $A <eos> $B:1 <eos>:1",
        special_tokens=[(name, engine.token_to_id(name)) for name in ("<bos>", "<eos>")],
    )
    config = {
        "bos_token": "<bos>",
        "cls_token": "<bos>",
        "eos_token": "<eos>",
        "sep_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "mask_token": "<mask>",
        "add_bos_token": True,
        "add_eos_token": True,
        "model_max_length": 8192,
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (folder / "tokenizer.json").write_text(engine.to_str())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return engine


def write_word_tokenizer(folder, pieces, special):
    """A lower-casing WordPiece tokenizer of these pieces, of which the first are special; it adds [CLS] (2)
    and [SEP] (3) and reads 40 tokens."""
    flags = {"special": True, "normalized": False, "lstrip": False, "rstrip": False, "single_word": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": id, "content": piece} | flags for id, piece in enumerate(pieces[:special])],
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]},
        "decoder": None,
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: id for id, piece in enumerate(pieces)},
        },
    }
    names = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    settings = names | {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 40}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))

"""BERT's tokenizer from its vocabulary alone."""

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from unmask.base.json_settings import JsonSettings
from unmask.errors import CorruptCheckpoint


def word_piece(content: bytes, config: JsonSettings, special: dict[str, AddedToken]) -> tokenizers.Tokenizer:
    """WordPiece from vocab.txt, one piece per line (Devlin et al. 2019); also DistilBERT, ELECTRA and others.

    If no config says whether to lower-case, the vocabulary decides: an uncased vocabulary has no piece with
    a capital letter except the special tokens in brackets.
    """
    try:
        lines = content.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptCheckpoint(f"vocab.txt is not UTF-8 text: {error}") from None
    pieces = [line.removesuffix("\r") for line in lines]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    names = {role: token.content for role, token in special.items()}
    absent = [names[role] for role in ("unk", "cls", "sep") if names[role] not in vocabulary]
    if absent:
        raise CorruptCheckpoint(f"vocab.txt lacks {', '.join(absent)}, so it is not a BERT vocabulary")
    # If the vocabulary has no [PAD] or [MASK], BERT does not recognize them in text.
    for role in ("pad", "mask"):
        if names.get(role) not in vocabulary:
            special.pop(role, None)
    lowercase = config.get_optional("do_lower_case", bool)
    if lowercase is None:
        lowercase = not any(piece != piece.lower() for piece in pieces if not piece.startswith("["))
    engine = tokenizers.Tokenizer(
        models.WordPiece(vocabulary, unk_token=names["unk"], max_input_chars_per_word=100)
    )
    engine.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get_optional("strip_accents", bool),
        lowercase=lowercase,
    )
    engine.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    engine.decoder = decoders.WordPiece(prefix="##")
    return engine

"""The positions of special tokens around one text and around a pair."""

from collections.abc import Mapping

from tokenizers import Tokenizer, processors


def set_format(engine: Tokenizer, special: Mapping[str, str], *, segments: bool) -> None:
    """Set the format of an engine that knows its special tokens.

    Args:
        engine: changed in place.
        special: the token of each role.
        segments: BERT's ``[CLS] A [SEP] B [SEP]`` with B and its separator of token type 1, or RoBERTa's
            ``<s> A </s></s> B </s>``, all of token type 0.
    """
    begin, end = _with_id(engine, special["cls"]), _with_id(engine, special["sep"])
    if segments:
        cls_token, sep_token = begin[0], end[0]
        engine.post_processor = processors.TemplateProcessing(
            single=[f"{cls_token}:0", "$A:0", f"{sep_token}:0"],
            pair=[f"{cls_token}:0", "$A:0", f"{sep_token}:0", "$B:1", f"{sep_token}:1"],
            special_tokens=[begin, end],
        )
    else:
        spaced = getattr(engine.pre_tokenizer, "add_prefix_space", False)
        engine.post_processor = processors.RobertaProcessing(
            end, begin, trim_offsets=True, add_prefix_space=spaced
        )


def _with_id(engine: Tokenizer, token: str) -> tuple[str, int]:
    index = engine.token_to_id(token)
    assert index is not None, "special tokens are added before the format is set"
    return token, index

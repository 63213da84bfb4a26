"""Text of the bytes of a file: UTF-8, or UTF-16 that begins with a byte order mark."""

import codecs

from unmask.errors import InvalidText


def decode(raw: bytes) -> str:
    """The text, without a byte order mark.

    Raises:
        InvalidText: the bytes are not such text; the message is a clause about "it".
    """
    sixteen = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    name, codec = ("UTF-16", "utf-16") if sixteen else ("UTF-8", "utf-8-sig")
    try:
        text = raw.decode(codec)
    except UnicodeDecodeError as error:
        # Positions count the bytes of the file, which the codec counts from after the mark.
        mark = len(codecs.BOM_UTF8) if codec == "utf-8-sig" and raw.startswith(codecs.BOM_UTF8) else 0
        at = error.start + (mark if raw[mark : mark + len(error.object)] == error.object else 0)
        if b"\0" in raw and not sixteen:
            raise _binary(raw.index(0)) from None
        raise InvalidText(
            f"it is not {name}: byte 0x{raw[at]:02x} at byte {at + 1}; convert it to UTF-8 first"
        ) from None
    if "\0" in text:
        before = text[: text.index("\0")].encode("utf-16-le" if sixteen else "utf-8")
        raise _binary(len(before) + (len(raw) - len(text.encode("utf-16-le" if sixteen else "utf-8"))))
    return text


def check_text(text: str, name: str = "text") -> None:
    """Raise `InvalidText` if a text from an escaped format (JSON) holds a lone surrogate.

    ``name`` is what the text is of its row.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"its {name} holds a lone surrogate U+{ord(text[error.start]):04X} at character {error.start}, "
            "which is not Unicode text"
        ) from None


def _binary(place: int) -> InvalidText:
    return InvalidText(f"it is not text: byte 0x00 at byte {place + 1}")

"""JSON files that contain their own SHA-256, so that any change to any byte of them is seen."""

import hashlib
import json
import re
from typing import Any

from unmask.errors import InvalidRequest

SEALED = re.compile(rb'\{"sha256": "([0-9a-f]{64})",\n"content": (.*)\}\n', re.DOTALL)
"""The whole of such a file: the SHA-256 of the content's bytes, and the content."""


def seal(content: object) -> bytes:
    """The bytes of a sealed file.

    Raises:
        InvalidRequest: the content is not JSON.
    """
    try:
        body = json.dumps(content, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"settings or facts of an index cannot be stored: {error}; give values of JSON's types"
        ) from None
    digest = hashlib.sha256(body).hexdigest().encode()
    return b'{"sha256": "' + digest + b'",\n"content": ' + body + b"}\n"


def unseal(file: bytes) -> Any:
    """The content of a sealed file.

    Raises:
        ValueError: it is not what was written.
    """
    found = SEALED.fullmatch(file)
    if found is None or hashlib.sha256(found[2]).hexdigest().encode() != found[1]:
        raise ValueError("it does not match its checksum")
    return json.loads(found[2])

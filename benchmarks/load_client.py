"""A client for load: HTTP/1.1 over kept connections, with as little work per request as Python allows.

A general client takes as long for a request as a small server does, and on the same cores it would measure
itself.
"""

import asyncio
import json
from collections.abc import Sequence
from types import TracebackType
from typing import Self


class NoAnswer(Exception):
    """The connection ended, or the time was over; the message says which."""


class LoadClient:
    """Sends requests to one port of this machine.

    Args:
        port: the port.
        kept: how many idle connections are kept. A request on a kept connection that the server is just
            closing, because it was idle, is lost; where each request counts, keep none.
    """

    def __init__(self, port: int, kept: int = 64) -> None:
        self._port, self._kept = port, kept
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _, writer in self._idle:
            writer.close()

    async def post(self, path: str, value: object, limit: float = 70.0) -> tuple[int, dict[str, str], bytes]:
        """The status, the headers and the body of an answer.

        Raises:
            NoAnswer: there is none.
        """
        body = json.dumps(value).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return await self._sent(head.encode() + body, limit)

    async def get(self, path: str, limit: float = 70.0) -> tuple[int, dict[str, str], bytes]:
        """See `post`."""
        return await self._sent(
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\n\r\n".encode(), limit
        )

    async def _sent(self, request: bytes, limit: float) -> tuple[int, dict[str, str], bytes]:
        reader, writer = None, None
        try:
            async with asyncio.timeout(limit):
                while self._idle and (reader is None or reader.at_eof()):
                    reader, writer = self._idle.pop()
                if reader is None or reader.at_eof():
                    reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                assert writer is not None
                writer.write(request)
                lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = _headers(lines[1:])
                body = await reader.readexactly(int(headers.get("content-length", "0")))
        except (OSError, EOFError, asyncio.IncompleteReadError) as error:
            kind = type(error).__name__
        except TimeoutError:
            kind = "TimeoutError"
        else:
            if headers.get("connection") != "close" and len(self._idle) < self._kept:
                self._idle.append((reader, writer))
                writer = None
            return int(lines[0].split()[1]), headers, body
        finally:
            if writer is not None:
                writer.close()
        raise NoAnswer(kind)


def _headers(lines: Sequence[str]) -> dict[str, str]:
    found = (line.partition(":") for line in lines if line)
    return {name.lower(): value.strip() for name, _, value in found}

"""The limits of a server."""

from dataclasses import dataclass

from unmask.base.arguments import whole_number as whole
from unmask.errors import InvalidRequest


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a server accepts, and how long it works on it."""

    tokens_per_pass: int = 512
    """Maximum number of tokens of one forward pass; a longer text runs alone. Texts wait longer behind a
    larger pass, and a CPU reads 512 tokens at nearly the speed of more; on a GPU, take thousands."""
    queued_tokens: int = 262_144
    """Maximum number of tokens that wait; a request that would exceed it is refused with 429."""
    concurrent_requests: int = 1024
    """Maximum number of requests that are read or wait; more are refused with 429."""
    texts: int = 2048
    """Maximum number of texts of one request."""
    body_bytes: int = 4 << 20
    """Maximum size of a request's body."""
    seconds: float = 60.0
    """Maximum time for one request; then it is answered with 504."""
    drain_seconds: float = 30.0
    """Maximum time for the requests that are unfinished when the server is told to stop."""

    def __post_init__(self) -> None:
        for name in ("tokens_per_pass", "queued_tokens", "concurrent_requests", "texts", "body_bytes"):
            whole(name, getattr(self, name), 1)
        for name in ("seconds", "drain_seconds"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < 1e6:
                raise InvalidRequest(f"{name} is {seconds!r}; it must be more than 0 and less than a million")

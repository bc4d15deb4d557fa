"""What clients may ask of the server: every cap in one place, and the errors that name one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    rows: int = 16  # answers that are generated together
    queue: int = 64  # requests that wait for a row
    context: int | None = None  # tokens of a prompt with its answer; the model's if None
    cache_bytes: int = 1 << 29  # keys and values of prefixes that are kept
    seconds: float = 600.0  # of a request, from its arrival to the last token
    grace: float = 10.0  # seconds that answers under way have when the server ends
    body: int = 4_000_000  # bytes of a request's body
    header_seconds: float = 10.0  # for a request's head to arrive
    body_seconds: float = 30.0  # and its body
    connections: int = 400


class Refused(Exception):
    """A request that is not answered: an HTTP status, a code for programs, and words."""

    def __init__(self, status: int, code: str, words: str, param: str | None = None) -> None:
        super().__init__(words)
        self.status, self.code, self.param = status, code, param

    @property
    def headers(self) -> dict[str, str]:
        return {"retry-after": "1"} if self.status in (429, 503) else {}

    def as_dict(self) -> dict[str, object]:
        """The error in OpenAI's form."""
        kind = "invalid_request_error" if self.status < 429 else "server_error"
        kind = {401: "authentication_error", 429: "rate_limit_error"}.get(self.status, kind)
        return {"error": {"message": str(self), "type": kind, "param": self.param, "code": self.code}}

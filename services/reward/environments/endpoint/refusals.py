"""Refusals of the endpoint: statuses, and the body that OpenAI's clients read."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.responses import JSONResponse

from shoal.v1 import environment_pb2 as pb

_REASONS = {
    pb.POLICY_REFUSAL_REASON_INVALID: (400, "invalid_value"),
    pb.POLICY_REFUSAL_REASON_CONTEXT_FULL: (400, "context_length_exceeded"),
    pb.POLICY_REFUSAL_REASON_LIMIT: (400, "episode_limit"),
    pb.POLICY_REFUSAL_REASON_PAUSED: (429, "run_paused"),
}
_TYPES = {401: "authentication_error", 429: "rate_limit_error", 500: "server_error"}


@dataclass(eq=False)
class Refused(Exception):
    """The endpoint refuses a request. The detail has the fault and the cure."""

    status: int
    code: str
    detail: str
    param: str | None = None
    retry_after_s: float | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Returns the error as clients read it."""
        kind = _TYPES.get(self.status, "invalid_request_error")
        return {"error": {"message": self.detail, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        # Without this header OpenAI's client would try again after a conflict, although nothing can change.
        headers = {"x-should-retry": "true" if self.status == 429 else "false", **self.headers}
        if self.retry_after_s is not None:
            headers["Retry-After"] = f"{max(1, round(self.retry_after_s))}"
        return JSONResponse(self.body(), self.status, headers)


def invalid(param: str, detail: str) -> Refused:
    """Returns the refusal of a field with a wrong value."""
    return Refused(400, "invalid_value", f"{param}: {detail}", param)


def unsupported(param: str, detail: str) -> Refused:
    """Returns the refusal of a field that this endpoint does not support."""
    return Refused(400, "unsupported_value", f"{param}: {detail}", param)


def ended() -> Refused:
    return Refused(409, "episode_ended", "the episode has ended: nothing more is sampled for it")


def refused_by(refusal: pb.PolicyRefusal) -> Refused:
    """Returns the refusal that the sampling side sent."""
    status, code = _REASONS.get(refusal.reason, (500, "internal_error"))
    return Refused(status, code, refusal.detail, retry_after_s=refusal.retry_after_s or None)

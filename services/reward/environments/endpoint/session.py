"""An episode at the endpoint: its calls and their answers."""

import asyncio
import itertools
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from services.reward.environments.endpoint.refusals import Refused, ended, refused_by
from shoal.v1 import environment_pb2 as pb

MAX_CALL_BYTES = 3 << 20
"""Maximum size of a call in bytes: three quarters of the largest message."""
_MAX_IN_FLIGHT = 256


@dataclass(eq=False)
class _Asked:
    """A call that was sent, and its reply."""

    body: bytes
    """Digest of the request."""
    idempotency_key: str
    reply: "asyncio.Future[pb.PolicyReply]"
    num_waiting: int = 0
    """Requests that wait for the reply: a client may ask again before its first request is seen to have ended."""
    is_read: bool = False
    """Whether a request received the reply."""


class Session:
    """The calls of one episode. Belongs to one event loop."""

    def __init__(self, send: Callable[[pb.PolicyCall], None], max_context_tokens: int) -> None:
        """`send` sends a call. The owner passes each reply to `take`."""
        self.key = secrets.token_urlsafe(24)
        self.max_context_tokens = max_context_tokens
        self.limit: pb.PolicyRefusal | None = None
        """The reason why no further call is answered; None while calls are answered."""
        self._send = send
        self._numbers = itertools.count(1)
        self._asked: dict[str, _Asked] = {}
        self._num_in_flight = 0
        self._num_refused: Counter[bytes] = Counter()
        """Number of temporarily refused requests, which may be repeated, by digest."""
        self.unread: tuple[str, ...] = ()
        """Set by `close`: the calls whose answers nobody read, including open calls, since the caller may answer a call
        before it learns of the end."""
        self._idle_since: float | None = asyncio.get_running_loop().time()
        self.is_closed = False

    def idle_s(self) -> float:
        """Returns how long no call has been open. A call that a limit refuses does not count, so every agent ends."""
        return 0.0 if self._idle_since is None else asyncio.get_running_loop().time() - self._idle_since

    async def ask(self, call: pb.PolicyCall, body: bytes, headers: Mapping[str, str]) -> pb.PolicyReply:
        """Returns the reply with the answer to a call. A repeated request gets the same reply. Raises `Refused`."""
        if self.is_closed:
            raise ended()
        if self.limit is not None:
            raise refused_by(self.limit)
        asked = self._earlier(body, headers) or self._sent(call, body, headers.get("idempotency-key", ""))
        asked.num_waiting += 1
        try:
            reply = await asyncio.shield(asked.reply)
        finally:
            asked.num_waiting -= 1
        asked.is_read = True
        if reply.HasField("refusal"):
            raise refused_by(reply.refusal)
        return reply

    def take(self, reply: pb.PolicyReply) -> None:
        asked = self._asked.get(reply.call_id)
        if asked is None or asked.reply.done():
            return
        self._num_in_flight -= 1
        is_limit = reply.HasField("refusal") and reply.refusal.reason == pb.POLICY_REFUSAL_REASON_LIMIT
        if is_limit and self.limit is None:
            self.limit = reply.refusal
        if self._num_in_flight == 0:
            self._idle_since = asyncio.get_running_loop().time()
        if reply.HasField("refusal"):
            self._num_refused[asked.body] += 1
            del self._asked[reply.call_id]  # The same request may get another answer later.
        asked.reply.set_result(reply)

    def close(self) -> None:
        """Ends the open calls. Takes no further calls."""
        if self.is_closed:
            return
        self.is_closed = True
        self.unread = tuple(call_id for call_id, asked in self._asked.items() if not asked.is_read)
        for asked in self._asked.values():
            if not asked.reply.done():
                asked.reply.set_exception(ended())
                asked.reply.exception()  # Retrieve the error, even if nobody waits.
        self._asked.clear()

    def _earlier(self, body: bytes, headers: Mapping[str, str]) -> _Asked | None:
        """Returns the call that a request repeats. An equal body alone is not a repetition: agents ask twice for two
        answers."""
        key = headers.get("idempotency-key", "")
        if key:
            earlier = next((asked for asked in self._asked.values() if asked.idempotency_key == key), None)
            if earlier is not None and earlier.body != body:
                raise Refused(400, "invalid_value", "Idempotency-Key: another request has this key; give a new key")
            return earlier
        retries = headers.get("x-stainless-retry-count", "0")
        if not retries.isdecimal() or not retries.strip("0"):
            return None
        same = [asked for asked in self._asked.values() if asked.body == body]
        for asked in same:
            if not (asked.num_waiting or asked.is_read):  # All clients of the call left before the reply.
                return asked
        # If it repeats a refused request, it is sent again: two equal requests each have their own answer.
        if self._num_refused[body]:
            self._num_refused[body] -= 1
            return None
        return same[-1] if same else None

    def _sent(self, call: pb.PolicyCall, body: bytes, idempotency_key: str) -> _Asked:
        if self._num_in_flight >= _MAX_IN_FLIGHT:
            self._num_refused[body] += 1
            detail = f"the episode already has {_MAX_IN_FLIGHT} unanswered calls"
            raise Refused(429, "too_many_calls", detail, retry_after_s=1.0)
        call.call_id = f"c{next(self._numbers)}"
        if call.ByteSize() > MAX_CALL_BYTES:
            raise Refused(413, "too_large", f"the request is {call.ByteSize():,} bytes; at most {MAX_CALL_BYTES:,}")
        asked = _Asked(body, idempotency_key, asyncio.get_running_loop().create_future())
        self._asked[call.call_id] = asked
        self._num_in_flight += 1
        self._idle_since = None
        self._send(call)
        return asked

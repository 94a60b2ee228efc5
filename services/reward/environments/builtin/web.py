"""The common part of `search` and `browse`: an HTTP endpoint, and the treatment of its failures."""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from services.reward.common.http_endpoint import EndpointFailed, HttpEndpoint
from services.reward.common.verdict import Unscorable
from shoal.config.tables.endpoint import EndpointConfig
from shoal.environment import Broken, Environment, ToolError

_NOT_THE_POLICYS = frozenset({401, 402, 403})
"""Refusals of the key. The answer is the same for every question of the policy."""

T = TypeVar("T")


class WebTool(Environment):
    """An environment whose tool asks an HTTP endpoint. An episode has its own connections, which end with it."""

    def __init__(self, endpoint: Mapping[str, Any], route: str, *, expected: str, **request: Any) -> None:
        """`endpoint` has the fields of `EndpointConfig`; `request` has arguments of `HttpEndpoint`. Raises `ValueError`
        for other fields."""
        # Shorter than `episodes.call_timeout_s` (60), after which the process would be killed.
        config = EndpointConfig.model_validate({"timeout_s": 30.0, "total_timeout_s": 50.0, **endpoint})
        if not config.base_url:
            raise ValueError("give base_url, the address of the service")
        self._endpoint = HttpEndpoint(
            config, route, section="settings", server="the service", expected=expected, **request
        )

    async def ask(self, body: Mapping[str, Any], read: Callable[[Any], T], *, outage_is_told: bool = False) -> T:
        """Returns `read` of the endpoint's answer. Raises `ToolError` for errors that the policy may learn from, and
        `Broken` for an outage. With `outage_is_told` an outage is a `ToolError` too, since the page may cause it."""
        try:
            return await self._endpoint.ask(body, read)
        except Unscorable as error:
            raise ToolError(str(error)) from None
        except EndpointFailed as error:
            if error.status in _NOT_THE_POLICYS or (error.status is None and not outage_is_told):
                raise Broken(str(error)) from None
            raise ToolError(str(error)) from None

    async def close(self) -> None:
        await self._endpoint.close()


def shortened(text: str, max_chars: int) -> str:
    """Returns the beginning of a text, with a note where it was cut."""
    return text if len(text) <= max_chars else f"{text[:max_chars]}\n[cut: {len(text) - max_chars} more characters]"

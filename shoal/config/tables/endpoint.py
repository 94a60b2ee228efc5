"""Settings of any server that Shoal calls over HTTP, with requests that may be retried."""

import re
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from shoal.config.tables.section import Section


class EndpointConfig(Section):
    base_url: str = ""
    """Address of the server."""
    api_key_env: str = ""
    """Environment variable of the reward service that has the key. If unset, no key is sent. The key itself does not
    belong in a configuration."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for one request."""
    total_timeout_s: float = Field(default=180.0, gt=0)
    """Longest time for one question, including all attempts and the pauses between attempts. After this time the
    outcome is FAILED."""
    max_attempts: int = Field(default=4, ge=1)
    """Maximum number of requests for one question if the server is busy, broken or silent."""
    max_concurrent: int = Field(default=32, ge=1)
    """Maximum number of questions that one reward service has open at the server. Other questions wait."""

    @field_validator("base_url")
    @classmethod
    def _is_plain_url(cls, value: str) -> str:
        if not value:
            return value
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("must begin with http:// or https:// and name a host, for example http://127.0.0.1:8000")
        try:
            _ = parts.port
        except ValueError:
            raise ValueError("has a port that is not a number from 0 to 65535") from None
        if parts.username is not None or parts.password is not None:
            # The message does not repeat the value, which has a secret in it.
            raise ValueError(
                "has a user name or password before the host (https://USER:PASSWORD@host), which would be stored with "
                "the run's configuration: write the address without them, put the key into an environment variable of "
                "the reward service, and name that variable in api_key_env"
            )
        if parts.query or parts.fragment:
            raise ValueError("must end with the path, without ? and #")
        return value.rstrip("/")

    @field_validator("api_key_env")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", value):
            # The value may be the key itself, by mistake, so the message does not repeat it.
            raise ValueError("must be the name of an environment variable, not the key; for example OPENAI_API_KEY")
        return value

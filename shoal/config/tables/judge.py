"""The table `reward.judge`: a language model that scores completions."""

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from shoal.config.tables.endpoint import EndpointConfig

PLACEHOLDERS = ("question", "answer", "reference", "rubric")
"""The placeholders of a template, such as {question}."""

PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z_0-9]*)?\}")
"""A placeholder in a template. Other braces, such as those of a JSON object, are text."""

_DOUBLED = re.compile(r"\{\{\s*[A-Za-z_]*\s*\}\}")


class JudgeConfig(EndpointConfig):
    base_url: str = ""
    """Address of the judge, up to the version, for example `http://127.0.0.1:8000/v1`. The judge may be any server with
    OpenAI's chat completions. If unset, data whose labels need a judge is refused."""
    model: str = ""
    """Name of the judge's model at the server."""
    template: str = ""
    """Question of `llm_judge`, with the placeholders {question}, {answer}, {reference} and {rubric}. {answer} is
    required. If unset, Shoal's own question is used. Shoal adds instructions on how to answer."""
    min_score: float = 0.0
    """Score of `llm_judge` that becomes the value 0."""
    max_score: float = 10.0
    """Score of `llm_judge` that becomes the value 1."""
    temperature: float = Field(default=0.0, ge=0)
    """Temperature of the judge; open-instruct's is 1."""
    max_tokens: int = Field(default=2048, ge=1)
    """Maximum length of the judge's answer in tokens, including its thoughts."""
    json_mode: bool = False
    """Request JSON only, if the server supports `response_format`."""
    cache_size: int = Field(default=10_000, ge=0)
    """Number of verdicts that one reward service caches, so that equal questions are asked once. 0 disables it."""
    input_price: float = Field(default=0.0, ge=0)
    """Price of a million tokens that the judge reads, in any currency."""
    output_price: float = Field(default=0.0, ge=0)
    """Price of a million tokens that the judge writes."""

    @field_validator("template")
    @classmethod
    def _has_known_placeholders(cls, value: str) -> str:
        if value:
            check_template(value)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.base_url and not self.model:
            raise ValueError("model is required with base_url: set it to the name of the judge's model at the server")
        if self.min_score >= self.max_score:
            raise ValueError(f"min_score ({self.min_score:g}) must be below max_score ({self.max_score:g})")
        return self


def check_template(template: str) -> None:
    """Raises `ValueError` for a template with unknown placeholders, or without {answer}."""
    if doubled := _DOUBLED.search(template):
        raise ValueError(f"{doubled.group()} would never be filled in; write a placeholder with single braces")
    for placeholder in PLACEHOLDER.finditer(template):
        if placeholder[1] not in PLACEHOLDERS:
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            raise ValueError(f"{placeholder.group()} is not a placeholder; known: {known}")
    if "{answer}" not in template:
        raise ValueError("has no {answer}, so the judge would not see what it judges")

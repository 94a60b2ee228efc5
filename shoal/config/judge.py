"""The table `reward.judge`: a language model that scores completions."""

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from shoal.config.endpoint import EndpointConfig

PLACES = ("question", "answer", "reference", "rubric")
"""What a template may ask for; as {question} in its text."""

PLACE = re.compile(r"\{([A-Za-z_][A-Za-z_0-9]*)?\}")
"""A place in a template. Other braces, as those of a JSON object, are text."""

_DOUBLED = re.compile(r"\{\{\s*[A-Za-z_]*\s*\}\}")


class JudgeConfig(EndpointConfig):
    base_url: str = ""
    """Where the judge answers: any server with OpenAI's chat completions, to the version, as in
    `http://127.0.0.1:8000/v1`. Unset, data whose labels need a judge are refused."""
    model: str = ""
    """Name of the judge's model at that server."""
    template: str = ""
    """What `llm_judge` asks, with the places {question}, {answer}, {reference} and {rubric}, of which {answer} is
    needed; unset is a template of our own. How to answer is added."""
    min_score: float = 0.0
    """Score of `llm_judge` that is worth 0."""
    max_score: float = 10.0
    """Score of `llm_judge` that is worth 1."""
    temperature: float = Field(default=0.0, ge=0)
    """Temperature of the judge; open-instruct's is 1."""
    max_tokens: int = Field(default=2048, ge=1)
    """Longest answer of the judge, its thoughts included."""
    json_mode: bool = False
    """Ask the server for JSON and nothing else, where it knows `response_format`."""
    cache_size: int = Field(default=10_000, ge=0)
    """Verdicts that one reward service keeps, so that an identical question is asked once; 0 keeps none."""
    input_price: float = Field(default=0.0, ge=0)
    """Price of a million tokens that the judge reads, in whatever currency."""
    output_price: float = Field(default=0.0, ge=0)
    """Price of a million tokens that the judge writes."""

    @field_validator("template")
    @classmethod
    def _has_known_places(cls, value: str) -> str:
        if value:
            check_template(value)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.base_url and not self.model:
            raise ValueError("model is required with base_url: the judge's model by its name at the server")
        if self.min_score >= self.max_score:
            raise ValueError(f"min_score ({self.min_score:g}) must be below max_score ({self.max_score:g})")
        return self


def check_template(template: str) -> None:
    """Raises `ValueError` for a template that would not be filled in as it reads."""
    if doubled := _DOUBLED.search(template):
        raise ValueError(f"{doubled.group()} would never be filled in; write a place with single braces")
    for place in PLACE.finditer(template):
        if place[1] not in PLACES:
            known = ", ".join(f"{{{name}}}" for name in PLACES)
            raise ValueError(f"{place.group()} is no place that can be filled in; known: {known}")
    if "{answer}" not in template:
        raise ValueError("has no {answer}, so the judge would not see what it judges")

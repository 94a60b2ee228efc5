"""The `[sampling]` table: how completions are drawn."""

from pydantic import Field, ValidationInfo, field_validator

from shoal.config.tables.section import Section

MAX_COMPLETION_TOKENS = 190_000
"""With tokens, log-probabilities, advantages and the last part of its supports, each takes 16 bytes of a message."""
MAX_TOP_K = 1024
"""Each token of a support takes 4 bytes on the wire and a row of the output layer in the learner."""


class SamplingConfig(Section):
    temperature: float = Field(default=1.0, ge=0.01, le=2)
    """Divisor of the logits, in sampling and in the learner. vLLM accepts at most 2, and would raise a value below 0.01
    to 0.01."""
    max_completion_tokens: int = Field(default=1024, ge=1, le=MAX_COMPLETION_TOKENS)
    """Maximum length of a completion. With the upper bound, all data of a completion fits one gRPC message."""
    top_k: int = Field(default=0, ge=0, le=MAX_TOP_K)
    """Sample from this many likeliest tokens. 0 samples from all tokens. Above 0 the generator returns the support of
    each token, the set of tokens that it was drawn from, over which the learner normalizes (sampling replay)."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Sample from the likeliest of the `top_k` tokens that together have this probability. Values below 1 need
    `top_k`."""
    min_p: float = Field(default=0.0, ge=0, lt=1)
    """Sample from tokens with at least this share of the likeliest token's probability. Values above 0 need `top_k`."""
    stop_strings: list[str] = Field(default_factory=list)
    """Texts that end a completion, in training and evaluation, for example `</answer>`. The tokens that complete such a
    text are kept and trained on. With stop strings generators decode each token as it is sampled, at a small cost."""

    @field_validator("top_k")
    @classmethod
    def _leaves_a_choice(cls, top_k: int) -> int:
        if top_k == 1:
            raise ValueError(
                "must be 0 (all tokens) or at least 2: with one token to draw from, all completions of a prompt would "
                "be the same, and nothing could be learned"
            )
        return top_k

    @field_validator("top_p", "min_p")
    @classmethod
    def _support_is_bounded(cls, value: float, info: ValidationInfo) -> float:
        off = 1 if info.field_name == "top_p" else 0
        if value != off and not info.data.get("top_k", MAX_TOP_K):
            raise ValueError(
                f"needs sampling.top_k above 0, for example 50, or must be {off}: the learner has to normalize over "
                "the tokens that each token was drawn from, and only top_k bounds their number (docs/algorithms.md)"
            )
        return value

    @property
    def is_restricted(self) -> bool:
        """Whether tokens are drawn from a part of the vocabulary."""
        return self.top_k > 0

    @field_validator("stop_strings")
    @classmethod
    def _are_not_empty(cls, stop_strings: list[str]) -> list[str]:
        if "" in stop_strings:
            raise ValueError("a stop string must not be empty: every completion would end with its first token")
        return stop_strings

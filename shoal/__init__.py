"""Shoal: GRPO training of language models as four gRPC services."""

__version__ = "0.1.0"
"""The version of the distribution too: pyproject.toml reads it here."""

"""Shoal: GRPO training of language models as four gRPC services."""

import os

# gRPC writes lines of its own past the log, beside errors that say the same. It reads this when it is imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__version__ = "0.1.0"
"""The version of the distribution too: pyproject.toml reads it here."""

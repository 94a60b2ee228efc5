"""Shoal: GRPO training of language models as four gRPC services."""

import os

# gRPC writes its own lines past the log, in addition to errors with the same content. It reads this at its import.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__version__ = "0.1.0"
"""The version, which pyproject.toml reads here."""

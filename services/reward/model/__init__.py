"""Completions scored by a reward model: a sequence classification model, in a process that `model_process.py` keeps and
that runs `runner.py`, with torch, or behind a server (`endpoint.py`)."""

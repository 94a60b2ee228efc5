"""Completions scored by a reward model, which is a sequence classification model. `model_process.py` keeps a process
that runs the model with torch (`runner.py`), or `endpoint.py` asks a server."""

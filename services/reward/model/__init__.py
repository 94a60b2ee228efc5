"""Completions scored by a reward model: a sequence classification model, next to the service or behind a server.

`question.py` is the input of a model and its output; `model_process.py` keeps a process that runs `runner.py`, which
has torch, `endpoint.py` talks to a server, and `scorer.py` turns the output of both into scores.
"""

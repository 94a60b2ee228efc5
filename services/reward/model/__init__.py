"""Completions scored by a reward model: a sequence classification model, beside the service or behind a server.

`question.py` is what a model is shown and `answer.py` what it says; `process.py` keeps a process that runs
`runner.py`, which has torch, `endpoint.py` speaks to a server, and `scorer.py` makes values of what either says.
"""

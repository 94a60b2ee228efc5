"""Completions scored by a reward model: a sequence classification model, beside the service or behind a server.

`question.py` is the input of a model and `answer.py` its output; `process.py` keeps a process that runs `runner.py`,
which has torch, `endpoint.py` talks to a server, `reward_model.py` makes values of the output of either, `scorer.py` is
the scorer.
"""

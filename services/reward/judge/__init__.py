"""Completions judged by a language model behind an OpenAI-compatible endpoint.

`labels.py` lists the labels and their questions, `templates.py` fills in a template, `reply.py` reads the verdict,
`endpoint.py` talks to the server, `judge.py` combines them with cache, limit and accounts, `scorer.py` is the scorer.
"""

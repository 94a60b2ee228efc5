"""Completions judged by a language model behind an OpenAI-compatible endpoint.

`labels.py` lists the labels and their questions, `templates.py` fills in a template, `endpoint.py` asks the
server and reads the grade in its reply, `judge.py` combines them with cache, limit and accounts, `scorer.py` is the
scorer.
"""

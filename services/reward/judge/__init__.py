"""Completions judged by a language model behind an OpenAI-compatible endpoint.

`labels.py` lists the labels and their questions, `templates.py` fills in a template, `reply.py` reads the grade in a
reply, and `judge.py` asks the server, with cache, limit and accounts.
"""

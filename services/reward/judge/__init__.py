"""Completions judged by a language model behind an OpenAI-compatible endpoint.

`labels.py` lists the labels and what each asks, `templates.py` fills a template in, `reply.py` reads the verdict,
`endpoint.py` speaks to the server, `judge.py` puts them together, with cache, limit and accounts.
"""

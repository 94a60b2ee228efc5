"""The policy endpoint: HTTP in the form of OpenAI's, where agents call the policy.

`server.py` listens and answers, `session.py` is one episode there, `chat.py` and `generate.py` are the two dialects,
and `answers.py` has their common fields. Nothing is sampled here: each call goes to the caller of `RunEpisode`.
"""

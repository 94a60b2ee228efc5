"""The policy endpoint: HTTP in the form of OpenAI's, where agents call the policy.

`server.py` listens and answers, `session.py` is one episode there, `chat.py` and `generate.py` are the two dialects,
and `answers.py` what goes back. Nothing is sampled here: each call travels to the caller of `RunEpisode`.
"""

"""Environments: the tools and games that episodes are played in.

`environment_service.py` is the RPC, `environments.py` all environments of a configuration, `episode.py` one episode,
which `pool.py` gives a place in a process (`environment_process.py`). `inside/` runs in that process, `builtin/` comes
with Shoal, and `remote.py` forwards episodes to another server.
"""

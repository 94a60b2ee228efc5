"""Verifiers that do not come with Shoal: a function of yours, in a file or an installed package.

`code.py` is what a function is loaded from, `loading.py` loads and calls it inside a process that can be killed,
`probe.py` tries that in a process of its own, `own.py` knows them all and takes new code when a file changes.
"""

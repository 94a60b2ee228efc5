"""How weights travel: what is sent (manifest), over which group, in which buckets, and how it is checked.

`manifest` and `rendezvous` need no torch; `group`, `transfer` and `hashing` import it when they are called.
"""

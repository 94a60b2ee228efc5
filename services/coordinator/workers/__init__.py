"""The workers of a run: their registry, pools, clients, and weights."""

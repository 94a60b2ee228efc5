"""The sandbox for untrusted programs."""

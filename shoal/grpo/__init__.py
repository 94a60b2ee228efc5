"""The math of GRPO that needs no tensors: advantages, seeds, pacing, packing."""

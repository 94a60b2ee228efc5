"""Prefixes of verl's overrides: `actor_rollout_ref.actor` and the others there."""

ACTOR, ROLLOUT, MODEL, REFERENCE = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model", "ref"))

TRUTH = "reward_model.ground_truth"
"""Column of verl's data with the label."""

"""Where verl's overrides are: `actor_rollout_ref.actor` and its neighbors."""

ACTOR, ROLLOUT, MODEL, REFERENCE = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model", "ref"))

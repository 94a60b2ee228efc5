"""verl's trainers, and the prefixes of its overrides."""

import re
from typing import Literal

ACTOR, ROLLOUT, MODEL, REFERENCE = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model", "ref"))
OPTIM = f"{ACTOR}.optim"

TRUTH = "reward_model.ground_truth"
"""Column of verl's data with the label."""

PROGRAMS = (
    re.compile(r"(^|[./])main_(ppo|dapo)\w*(\.py)?$"),
    re.compile(r"^verl\.(\w+\.)+main_\w+$"),
    re.compile(r"(^|[./])fully_async_main(\.py)?$"),
)


def trainer_of(program: str) -> Literal["ppo", "one_step_off", "fully_async"]:
    """Returns the trainer that a module or file starts."""
    if "one_step_off" in program:
        return "one_step_off"
    return "fully_async" if "fully_async" in program else "ppo"

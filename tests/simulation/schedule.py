"""What happens to a run, and when: the settings of the run, and its faults as plain values.

A seed draws a schedule. Written down, a schedule plays the same faults after the code has come to draw others.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

KINDS = {"generator": 3, "reward": 2}
"""The most workers of a kind, beside the one learner."""


@dataclass(frozen=True)
class Fault:
    what: str
    """Its name: the method of `Scenario` that does it."""
    in_s: float = 0.0
    """Seconds after the fault before it, or after the event that it waits for."""
    after: str = ""
    """The event that it waits for: its kind and a number, "step 2" for the second step."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the method."""


@dataclass(frozen=True)
class Schedule:
    sections: Mapping[str, Mapping[str, Any]]
    """Tables of its configuration."""
    num_workers: Mapping[str, int]
    weather: float = 0.0
    """Share of the calls that break, and of the messages that are slow, from the beginning."""
    faults: tuple[Fault, ...] = ()
    found: str = ""
    """What it found, of a schedule that once failed."""

    @property
    def num_steps(self) -> int:
        return int(self.sections["run"]["num_steps"])

    @property
    def max_staleness(self) -> int:
        return int(self.sections["grpo"]["max_staleness"])

    def dump(self) -> str:
        """Returns the schedule as JSON, a fault a line."""
        values = asdict(self)
        faults = ",\n  ".join(json.dumps(fault) for fault in values.pop("faults"))
        return json.dumps(values, indent=1)[:-2] + f',\n "faults": [\n  {faults}\n ]\n}}\n'


def load(text: str) -> Schedule:
    values = json.loads(text)
    return Schedule(**values | {"faults": tuple(Fault(**fault) for fault in values["faults"])})


def drawn(rng: random.Random) -> Schedule:
    sections = _sections(rng)
    num_workers = {kind: rng.randint(1, at_most) for kind, at_most in KINDS.items()}
    weather = rng.choice((0.02, 0.1)) if rng.random() < 0.5 else 0.0
    pace_s = rng.choice((0.5, 2.0, 6.0))
    num_faults = rng.randint(1, 25)
    faults = tuple(_fault(rng, rng.expovariate(1 / pace_s), sections) for _ in range(num_faults))
    return Schedule(sections, num_workers, weather, faults)


def _sections(rng: random.Random) -> dict[str, dict[str, Any]]:
    grpo: dict[str, Any] = {
        "group_size": rng.randint(2, 3),
        "groups_per_step": rng.randint(1, 4),
        "max_staleness": rng.choice((0, 1, 2)),
    }
    if rng.random() < 0.5:
        grpo |= {"active_sampling": True, "max_refills": rng.randint(1, 3)}
    sections: dict[str, dict[str, Any]] = {
        "data": {"sources": [{"task": "arithmetic", "task_size": rng.choice((5, 40))}], "max_prompt_tokens": 200},
        "grpo": grpo,
        "generator": {"max_num_seqs": rng.choice((2, 6, 256)), "report_every_tokens": 1},
        "run": {"num_steps": rng.randint(4, 10), "seed": rng.randrange(3)},
        "reward": {"outage_window": 6},
        "coordinator": {"worker_timeout_s": 120, "sampling_timeout_s": 60, "max_restarts": 1000},
        "weights": {"timeout_s": 30, "inflight_updates": rng.random() < 0.7},
        "checkpoint": {"every_steps": rng.randint(1, 4), "keep_last": rng.randint(1, 3)},
    }
    if rng.random() < 0.4:
        sections["evaluation"] = {
            "sources": [{"task": "arithmetic", "task_size": 50, "task_seed": 7}],
            "num_prompts": 3,
            "every_steps": rng.randint(1, 3),
        }
    if rng.random() < 0.3:
        sections["checkpoint"]["export_every_steps"] = 2
    return sections


def _fault(rng: random.Random, in_s: float, sections: Mapping[str, Mapping[str, Any]]) -> Fault:
    share = rng.choice((0.02, 0.1, 0.3))
    worker = {"worker": rng.randrange(1000)}
    back = {"back_s": rng.choice((0.1, 2.0, 20.0)) * rng.random()}
    timeout = {"timeout_s": rng.choice((5, 600))}
    what, values = rng.choice(
        [
            ("kill_coordinator", back),
            ("kill_coordinator", back),
            ("end_coordinator", {}),
            ("kill_worker", worker | back),
            ("kill_worker", worker | back),
            ("kill_learner", back),
            ("kill_rank", {"noticed_s": rng.random() * 10}),
            ("stop_worker", worker | {"for_s": rng.random() * rng.choice((5, 40))}),
            ("stop_coordinator", {"for_s": rng.random() * rng.choice((5, 40))}),
            ("part_worker", worker | {"for_s": rng.random() * 40}),
            ("cut_off_worker", worker),
            ("weather", {"break_share": share, "slow_share": share, "slow_s": rng.choice((0.5, 5.0, 40.0))}),
            ("weather", {"break_share": 0.0, "slow_share": 0.0}),
            ("faults", {"endless_share": share / 10, "internal_share": share, "slow_ready_share": share}),
            ("faults", {"flipped_share": share, "stalled_join_share": share}),
            ("verifier_outage", {"for_s": rng.random() * 30}),
            ("faults", {"num_refusals": rng.randint(1, 2)}),
            ("faults", {"step_s": rng.choice((0.5, 5.0, 40.0))}),
            ("faults", {"finish_s": rng.choice((0.5, 10.0, 60.0))}),
            ("faults", {"num_full": rng.randint(1, 3)}),
            ("damage", {"files": rng.random() < 0.5, "place": rng.randrange(2**20)}),
            ("join", {}),
            ("pause", timeout | {"for_s": rng.random() * 40}),
            ("verb", timeout | {"method": "SaveCheckpoint"}),
            ("verb", timeout | {"method": "Evaluate"}),
            ("update", timeout | _update(rng, int(sections["run"]["num_steps"]))),
            ("verb", timeout | {"method": "StopRun", "mode": "STOP_MODE_NOW"}),
            ("verb", timeout | {"method": "StopRun", "mode": "STOP_MODE_DRAIN"}),
            ("resume", {}),
            ("verb", timeout | {"method": "ListRollouts", "page_size": 5}),
        ]
    )
    return Fault(what, in_s, values=values)


def _update(rng: random.Random, num_steps: int) -> dict[str, Any]:
    field_name, value = rng.choice(
        [
            ("learner.learning_rate", rng.random() * 1e-5),
            ("checkpoint.every_steps", rng.randint(1, 4)),
            ("coordinator.sampling_timeout_s", rng.choice((40.0, 90.0))),
            ("run.num_steps", num_steps + rng.randint(0, 2)),
            ("grpo.max_wrong_completion_tokens", rng.randint(1, 4)),
            ("grpo.difficulty_low", rng.choice((0.2, 0.4))),
        ]
    )
    return {"field": field_name, "value": value}

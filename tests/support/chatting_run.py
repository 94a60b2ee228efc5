"""A whole run with real engines whose episodes are of an environment and of an agent, both Python files."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.local_stack import STARTING_S, LocalStack, guessing_config, write_config


@contextlib.contextmanager
def chatting_run(
    folder: Path, name: str, code: dict[str, str], *, num_steps: int, num_groups: int, group_size: int, **sections: Any
) -> Iterator[LocalStack]:
    """Plays a run to its end, of short turns at staleness 0.

    `code` has a class `Chatter` by the name of the environment, to which as many rows belong as to each other;
    `sections` are others of the configuration.
    """
    for environment, text in code.items():
        (folder / f"{environment}.py").write_text(text)
        rows = [{"messages": f"Question {number}"} for number in range(64)]
        (folder / f"{environment}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = guessing_config(
        folder,
        data={"sources": [{"path": str(folder / f"{name}.jsonl"), "environment": name} for name in code]},
        run={"num_steps": num_steps},
        grpo={"group_size": group_size, "groups_per_step": num_groups, "max_staleness": 0},
        episodes={"max_turns": 8, "max_turn_tokens": 8},
        environments=[{"name": name, "source": f"{folder / name}.py:Chatter"} for name in code],
        **sections,
    )
    with LocalStack(folder / "runs", name, str(write_config(folder / "run.toml", config))) as stack:
        assert stack.wait(STARTING_S + 240) == 0, stack.tail()
        yield stack

"""A whole run with real engines, whose episodes are of an environment that is a Python file."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from tests.support.local_stack import STARTING_S, LocalStack, guessing_config, write_config


@contextlib.contextmanager
def chatting_run(
    folder: Path, name: str, code: str, *, num_steps: int, num_groups: int, group_size: int
) -> Iterator[LocalStack]:
    """Plays a run to its end. `code` has the class `Chatter`, an environment of short turns at staleness 0."""
    (folder / "chatter.py").write_text(code)
    rows = [{"messages": f"Question {number}"} for number in range(64)]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = guessing_config(
        folder,
        data={"sources": [{"path": str(folder / "questions.jsonl"), "environment": "chatter"}]},
        sampling={"max_completion_tokens": 400},
        run={"num_steps": num_steps},
        grpo={"group_size": group_size, "groups_per_step": num_groups, "max_staleness": 0},
        episodes={"max_turns": 8, "max_turn_tokens": 8},
        environments=[{"name": "chatter", "source": f"{folder / 'chatter.py'}:Chatter"}],
    )
    with LocalStack(folder / "runs", name, str(write_config(folder / "run.toml", config))) as stack:
        assert stack.wait(STARTING_S + 240) == 0, stack.tail()
        yield stack

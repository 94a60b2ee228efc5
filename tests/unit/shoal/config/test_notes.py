"""Notes on settings that do less, or more, than they seem to."""

from typing import Any

import pytest

from shoal.config import parse_config
from shoal.config.notes import notes_on


def config(verifier: str | list[str] = "gsm8k", **sections: Any) -> Any:
    data = {"sources": [{"path": "d", "verifier": verifier}]}
    return parse_config({"model": {"path": "m"}, "data": data, **sections})


@pytest.mark.parametrize(
    ("reward", "named"),
    [
        ({"length": {"coef": 0.5, "only_correct": False}}, "reward.length"),
        ({"cosine": {"factor": 1}}, "reward.cosine"),
        ({"overlong": {"factor": 1, "buffer_tokens": 8}}, "reward.overlong"),
        ({"repetition": {"max_penalty": -1}}, "reward.repetition"),
        ({"style": {"steps": 1}}, "reward.style"),
        ({"format": {"kind": "r1", "mode": "add"}}, "reward.format"),
        ({"non_stop_penalty": -1}, "reward.non_stop_penalty"),
    ],
)
def test_shaping_that_tells_wrong_completions_apart_is_noted_with_the_settings_that_leave_them_out(
    reward: dict[str, Any], named: str
) -> None:
    (note,) = notes_on(config(reward=reward, grpo={"active_sampling": True}))
    assert note.startswith(named) and "active_sampling" in note
    assert "grpo.difficulty_low = 0" in note and 'grpo.filter_groups_by = "correct"' in note
    for grpo in ({"difficulty_low": 0}, {"filter_groups_by": "correct"}, {"keep_zero_signal": True}):
        assert notes_on(config(reward=reward, grpo=grpo)) == [], grpo


def test_a_verifier_that_says_nothing_is_noted_as_shaping() -> None:
    (note,) = notes_on(config(["gsm8k", "soft_overlong"]))
    assert note.startswith("the verifier soft_overlong") and "active_sampling" not in note
    assert notes_on(config(["gsm8k", "r1_format", "passthrough"])) == []


def test_shaping_of_right_completions_alone_is_no_matter() -> None:
    assert notes_on(config(reward={"length": {"coef": 0.5}, "format": {"kind": "r1"}})) == []

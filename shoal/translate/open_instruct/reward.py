"""open-instruct's flags for rewards."""

from typing import Any

from shoal.translate.shared.draft import Draft, Source


def compose_reward(source: Source, draft: Draft) -> None:
    """Sets the format reward, the penalty for unfinished completions, and the names and options of verifiers."""
    _format(source, draft)
    penalty = source["non_stop_penalty_value"]
    if source["non_stop_penalty"]:
        draft.set("reward.non_stop_penalty", penalty, source.origin("non_stop_penalty", "non_stop_penalty_value"))
    else:
        source.note_unused(draft, "non_stop_penalty_value", why="changes nothing without non_stop_penalty")
    if remap := source["remap_verifier"]:
        old, equals, new = (part.strip() for part in remap.partition("="))
        if old and equals and new:
            draft.set("reward.remap", {old.lower(): new.lower()}, source.origin("remap_verifier"))
        else:
            draft.refuse("remap_verifier", remap, 'must be "old=new", two names of verifiers')
    _verifiers(source, draft)


_CODE = {
    "code_max_execution_time": "timeout_s",
    "code_pass_rate_reward_threshold": "pass_rate_threshold",
    "code_apply_perf_penalty": "reward_speed",
}
_ALL_TESTS_S = 8.0
"""Seconds for all tests of a program, unless a single test may take longer."""


def _verifiers(source: Source, draft: Draft) -> None:
    """Sets options of the verifiers that check lengths and programs."""
    longest = source["max_length_verifier_max_length"]
    options: dict[str, dict[str, Any]] = {}
    names = [name for name in (*_CODE, "max_length_verifier_max_length") if source.is_set(name)]
    if longest < 1:
        draft.refuse("max_length_verifier_max_length", longest, "must be at least 1")
    elif "max_length_verifier_max_length" in names:
        options = {name: {"max_length_tokens": longest} for name in ("max_length", "up_to_max_length")}
    code = {ours: source[name] for name, ours in _CODE.items() if source[name] is not None and name in names}
    if code.get("timeout_s", 0) > _ALL_TESTS_S:
        code["total_timeout_s"] = code["timeout_s"]
        draft.set("reward.timeout_s", code["timeout_s"] + 2, source.origin("code_max_execution_time"))
    if code:
        options |= {"code": code, "code_stdio": code}
    if options:
        draft.set("reward.verifiers", options, source.origin(*names))


def _format(source: Source, draft: Draft) -> None:
    value, adds = source["r1_style_format_reward"], source["additive_format_reward"]
    if not source["apply_r1_style_format_reward"]:
        unused = ("r1_style_format_reward", "additive_format_reward")
        source.note_unused(draft, *unused, why="changes nothing without apply_r1_style_format_reward")
        return
    form = {"kind": "r1", "mode": "add" if adds else "gate", "value": value}
    names = ("apply_r1_style_format_reward", "additive_format_reward", "r1_style_format_reward")
    draft.set("reward.format", form, source.origin(*names))
    if not adds and value != 1 and source["apply_verifiable_reward"]:
        draft.notes.append(
            f"r1_style_format_reward = {value}: the format gates the reward here; open-instruct compares "
            "the value with 1 and gives no reward"
        )

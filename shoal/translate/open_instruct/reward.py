"""open-instruct's flags for rewards, and for its judge, a language model that grades."""

from typing import Any

from shoal.translate.shared.draft import Draft, Source

JUDGE_ADDRESS = "HOSTED_VLLM_API_BASE"
"""The environment variable with the address of a self-hosted judge."""
_HOSTED = "hosted_vllm/"
_FLAGS = ("llm_judge_model", "llm_judge_max_tokens", "llm_judge_temperature", "llm_judge_timeout")


def compose_reward(source: Source, draft: Draft) -> None:
    """Sets the format reward, the penalty for unfinished completions, and the names and options of verifiers."""
    _verifiable(source, draft)
    _format(source, draft)
    penalty = source["non_stop_penalty_value"]
    if source["non_stop_penalty"]:
        draft.set("reward.non_stop_penalty", penalty, source.origin("non_stop_penalty", "non_stop_penalty_value"))
    else:
        source.note_unused("non_stop_penalty_value", why="changes nothing without non_stop_penalty")
    if remap := source["remap_verifier"]:
        old, equals, new = (part.strip() for part in remap.partition("="))
        if old and equals and new:
            draft.set("reward.remap", {old.lower(): new.lower()}, source.origin("remap_verifier"))
        else:
            draft.refuse("remap_verifier", remap, 'must be two names of verifiers, in the form "old=new"')
    _verifiers(source, draft)


def _verifiable(source: Source, draft: Draft) -> None:
    """Sets whether verifiers score. The earlier trainer had a separate flag for its judge."""
    verifies, judges = source["apply_verifiable_reward"], source["apply_llm_verifier_reward"]
    source.copy("apply_verifiable_reward", "reward.apply_verifiable_reward")
    if judges and not verifies:
        reason = (
            "with apply_verifiable_reward = false, only the judge gave rewards; in Shoal, one field turns on the judge "
            "and the other verifiers, and the labels of the data choose between them: give "
            "--set reward.apply_verifiable_reward=true"
        )
        draft.refuse("apply_llm_verifier_reward", True, reason, cure="reward.apply_verifiable_reward")
    elif judges:
        draft.notes.append("apply_llm_verifier_reward = true: the labels of the data decide what a judge scores")


_CODE = {
    "code_max_execution_time": "timeout_s",
    "code_pass_rate_reward_threshold": "pass_rate_threshold",
    "code_apply_perf_penalty": "reward_speed",
}
_OF_CODE = (*_CODE, "code_api_url")
"""Flags whose presence shows that programs are checked."""


def _verifiers(source: Source, draft: Draft) -> None:
    longest = source["max_length_verifier_max_length"]
    options: dict[str, dict[str, Any]] = {}
    names = [name for name in (*_CODE, "max_length_verifier_max_length") if source.is_set(name)]
    if longest < 1:
        draft.refuse("max_length_verifier_max_length", longest, "must be at least 1")
    elif "max_length_verifier_max_length" in names:
        options = {name: {"max_length_tokens": longest} for name in ("max_length", "up_to_max_length")}
    if any(map(source.is_set, _OF_CODE)):
        code = {ours: source[name] for name, ours in _CODE.items() if source[name] is not None and name in names}
        # open-instruct waits this long for all tests of a program.
        code["total_timeout_s"] = max(30.0, min(300.0, 10 * source["code_max_execution_time"]))
        options |= {"code": code, "code_stdio": code}
        names = names or ["code_max_execution_time"]
        draft.set("reward.timeout_s", code["total_timeout_s"] + 2, source.origin("code_max_execution_time"))
    if options:
        draft.set("reward.verifiers", options, source.origin(*names))


def _format(source: Source, draft: Draft) -> None:
    value, adds = source["r1_style_format_reward"], source["additive_format_reward"]
    if not source["apply_r1_style_format_reward"]:
        unused = ("r1_style_format_reward", "additive_format_reward")
        source.note_unused(*unused, why="changes nothing without apply_r1_style_format_reward")
        return
    form = {"kind": "r1", "mode": "add" if adds else "gate", "value": value}
    names = ("apply_r1_style_format_reward", "additive_format_reward", "r1_style_format_reward")
    draft.set("reward.format", form, source.origin(*names))
    if not adds and value != 1 and source["apply_verifiable_reward"]:
        draft.notes.append(
            f"r1_style_format_reward = {value}: if the format is right, Shoal gives the reward of the verifiers; "
            "open-instruct never gives it, since it compares this value with 1"
        )


def compose_judge(source: Source, draft: Draft) -> None:
    """Sets `reward.judge` if a flag configures it. open-instruct reads the judge's address from the environment."""
    model, timeout = source["llm_judge_model"], source["llm_judge_timeout"]
    address = source[JUDGE_ADDRESS] if model.startswith(_HOSTED) else None
    settings = {
        # litellm's names begin with a provider, "hosted_vllm/Qwen/Qwen3-32B"; the server knows the rest.
        "model": model.partition("/")[2] or model,
        "max_tokens": source["llm_judge_max_tokens"],
        "temperature": source["llm_judge_temperature"],
        "timeout_s": timeout,
        "total_timeout_s": max(180, timeout),
    }
    names = [name for name in _FLAGS if source.is_set(name)]
    if not names or not address:
        source.note_unused(JUDGE_ADDRESS, why=f"used only if llm_judge_model is set and begins with {_HOSTED}")
    if not names:
        return
    if address:
        draft.set("reward.judge", settings | {"base_url": address}, source.origin(*names, JUDGE_ADDRESS))
        return
    draft.set("reward.judge", settings, source.origin(*names))
    draft.notes.append(
        f"llm_judge_model = {model}: give its address with --set reward.judge.base_url=... and, if it needs a key, "
        "reward.judge.api_key_env=...; without an address, data whose labels need a judge are refused"
    )

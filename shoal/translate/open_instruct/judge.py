"""open-instruct's flags for its judge, a language model that grades."""

from shoal.translate.shared.draft import Draft, Source

JUDGE_ADDRESS = "HOSTED_VLLM_API_BASE"
"""The environment variable with the address of a self-hosted judge."""
_HOSTED = "hosted_vllm/"
_FLAGS = ("llm_judge_model", "llm_judge_max_tokens", "llm_judge_temperature", "llm_judge_timeout")


def compose_judge(source: Source, draft: Draft) -> None:
    """Sets `reward.judge` if a flag configures it; open-instruct has its address in the environment."""
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
        source.note_unused(draft, JUDGE_ADDRESS, why=f"only an llm_judge_model of {_HOSTED} is asked there")
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

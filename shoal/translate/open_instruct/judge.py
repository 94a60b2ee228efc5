"""open-instruct's flags for its judge, a language model that grades."""

from shoal.translate.shared.draft import Draft, Source

_FLAGS = ("llm_judge_model", "llm_judge_max_tokens", "llm_judge_temperature", "llm_judge_timeout")


def compose_judge(source: Source, draft: Draft) -> None:
    """Sets `reward.judge` if a flag configures it; open-instruct has its address in the environment."""
    model, timeout = source["llm_judge_model"], source["llm_judge_timeout"]
    settings = {
        # litellm's names begin with a provider, "hosted_vllm/Qwen/Qwen3-32B"; the server knows the rest.
        "model": model.partition("/")[2] or model,
        "max_tokens": source["llm_judge_max_tokens"],
        "temperature": source["llm_judge_temperature"],
        "timeout_s": timeout,
        "total_timeout_s": max(180, timeout),
    }
    if not any(source.is_set(name) for name in _FLAGS):
        return
    names = [name for name in _FLAGS if source.is_set(name)]
    draft.set("reward.judge", settings, source.origin(*names))
    draft.notes.append(
        f"llm_judge_model = {model}: give its address with --set reward.judge.base_url=... and, if it needs a key, "
        "reward.judge.api_key_env=...; without an address, data whose labels need a judge are refused"
    )

"""What open-instruct's flags say of its judge."""

from shoal.config.translate.draft import Draft, Source

_FLAGS = ("llm_judge_model", "llm_judge_max_tokens", "llm_judge_temperature", "llm_judge_timeout")


def compose_judge(source: Source, draft: Draft) -> None:
    """Sets `reward.judge` where a flag speaks of it; where the judge answers is in open-instruct's environment."""
    model, timeout = source["llm_judge_model"], source["llm_judge_timeout"]
    settings = {
        # litellm's names begin with a provider, "hosted_vllm/Qwen/Qwen3-32B"; its server knows the rest.
        "model": model.partition("/")[2] or model,
        "max_tokens": source["llm_judge_max_tokens"],
        "temperature": source["llm_judge_temperature"],
        "timeout_s": timeout,
        "total_timeout_s": max(180, timeout),
    }
    if not any(source.is_given(name) for name in _FLAGS):
        return
    given = [name for name in _FLAGS if source.is_given(name)]
    draft.set("reward.judge", settings, source.origin(*given))
    draft.notes.append(
        f"llm_judge_model = {model}: say where it answers with --set reward.judge.base_url=... and, for a key, "
        "reward.judge.api_key_env=...; without, data whose labels need a judge are refused"
    )

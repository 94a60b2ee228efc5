"""ROLL's reward workers, one for each domain: class, tags and options, read from the table `rewards`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.translate.shared.draft import Draft, Source
from shoal.translate.shared.field import NOT_YET

_VERIFIERS = {
    "MathRuleRewardWorker": "math",
    "CodeSandboxRewardWorker": "code",
    "LLMJudgeRewardWorker": "llm_judge",
    "CrossThinkQARuleRewardWorker": "multiple_choice",
    "MultipleChoiceBoxedRuleRewardWorker": "multiple_choice",
    "GeneralRuleRewardWorker": "ifeval_old",
    "GSM8KMathRewardWorker": "math",
}
"""Shoal's verifiers, by ROLL's classes. ROLL's ifeval data have open-instruct's older labels."""
_OF_IMAGES = ("DetectionRewardWorker", "Geo3kRewardWorker", "VideoR1RewardWorker", "VLMMathRewardWorker")
DEFAULT_DOMAIN = "math_rule"
"""The domain of rows whose tag no worker lists."""
_SPREAD = (
    "name",
    "world_size",
    "infer_batch_size",
    "device_mapping",
    "num_gpus_per_worker",
    "strategy_args",
    "system_envs",
    "max_concurrency",
    "backend_timeout",
    "offload_nccl",
    "use_dynamic_batching_in_infer",
    "max_tokens_per_microbatch_in_infer",
    "sequence_length_round_in_infer",
    "use_dynamic_batching_in_train",
    "max_tokens_per_microbatch_in_train",
    "sequence_length_round_in_train",
    "use_sequence_packing",
    "sequence_packing_args",
    "use_remove_padding",
    "model_update_frequency",
    "logits_in_fp32",
    "apply_loss_scale",
    "topr_positive_weight",
    "topr_negative_weight",
    "use_logits_chunking",
    "logits_chunk_size",
    "router_replay",
    "mtp_training_mode",
    "opd_kl_coef",
)
_UNREAD = {
    "format_pattern": "ROLL computes it and leaves it out of the reward; reward.format rewards a format",
    "data_args": "a judge uses the chat template of its server",
    "training_args": "reward workers do not train",
    "checkpoint_config": "Shoal creates the run's folder below --data-dir",
    "use_local": "programs run in Shoal's own sandbox (docs/sandbox.md)",
    "code_url": "programs run in Shoal's own sandbox (docs/sandbox.md)",
    "pg_variant": "reward workers do not train",
}
_OF_JUDGES = (
    "model_args",
    "generating_args",
    "judge_prompt",
    "judge_model_type",
    "judge_model_name",
    "judge_api_url",
    "judge_api_key",
)
_REFUSED = {
    "response_filter_config": ("Shoal drops whole groups, not single completions", "grpo.active_sampling"),
    "response_length_penalty_coef": ("ROLL's penalty also counts padding: set reward.length instead", "reward.length"),
    "reward_manager_config": ("start your own reward system as a server: set reward.servers", "reward.servers"),
}
_READ = (*_SPREAD, "worker_cls", "tag_included", "query_filter_config", "reward_type")


@dataclass(frozen=True)
class RewardWorker:
    """The worker of one domain."""

    domain: str
    verifier: str
    tags: tuple[str, ...]
    options: Mapping[str, Any]
    """The worker's settings in ROLL."""
    query_filter: tuple[str, dict[str, float]] = field(default=("no_filter", {}))
    """The kind and the options of the filter of groups."""

    @property
    def is_share(self) -> bool:
        """Whether a group's mean reward equals the group's share of correct completions, since rewards are 0 and 1."""
        return self.verifier in ("math", "code", "llm_judge")

    @property
    def penalizes_repetition(self) -> bool:
        """Whether ROLL's class subtracts a penalty for repeated 3-grams."""
        return self.class_name in ("CrossThinkQARuleRewardWorker", "GeneralRuleRewardWorker")

    @property
    def class_name(self) -> str:
        return str(self.options.get("worker_cls", "")).rpartition(".")[2]


def read_workers(source: Source, draft: Draft) -> list[RewardWorker]:
    """Reads the workers; refuses classes that are not ROLL's own, and names all settings without effect."""
    table = source["rewards"]
    workers = []
    spread: set[str] = set()
    for domain, options in (table or {}).items():
        where = f"rewards.{domain}"
        if not isinstance(options, Mapping):
            draft.refuse(where, options, "a table of a worker's settings is expected", cure="data.sources")
            continue
        worker = _worker(domain, options, draft)
        spread |= {name for name in options if name in _SPREAD}
        _account(where, options, worker, draft)
        if worker is not None:
            workers.append(worker)
    if spread:
        draft.notes.append(
            f"rewards.*: {', '.join(sorted(spread))} say where rewards are computed; in Shoal, launch.num_rewards "
            "and reward.num_processes decide this"
        )
    return workers


def _worker(domain: str, options: Mapping[str, Any], draft: Draft) -> RewardWorker | None:
    where, path = f"rewards.{domain}.worker_cls", str(options.get("worker_cls", ""))
    name = path.rpartition(".")[2]
    if name in _OF_IMAGES:
        draft.refuse(where, path, f"not yet available: {NOT_YET['vision']}")
        return None
    if name not in _VERIFIERS:
        reason = f"Shoal supports only {', '.join(_VERIFIERS)}: write it as a custom verifier (docs/rewards.md)"
        draft.refuse(where, path, reason, cure="reward.custom")
        return None
    tags = options.get("tag_included") or ()
    tags = (tags,) if isinstance(tags, str) else tuple(map(str, tags))
    kind, settings = "no_filter", {}
    if isinstance(chosen := options.get("query_filter_config"), Mapping):
        kind, settings = str(chosen.get("type", "no_filter")), dict(chosen.get("filter_args") or {})
    return RewardWorker(domain, _VERIFIERS[name], tags, options, (kind, settings))


def _account(where: str, options: Mapping[str, Any], worker: RewardWorker | None, draft: Draft) -> None:
    """Notes the settings that change no result in Shoal, and refuses settings that would change a result."""
    is_judge = worker is not None and worker.verifier == "llm_judge"
    for name, value in options.items():
        if name in _READ or (is_judge and name in _OF_JUDGES):
            continue
        if name in _UNREAD:
            draft.notes.append(f"{where}.{name}: {_UNREAD[name]}")
        elif name in _OF_JUDGES:
            draft.notes.append(f"{where}.{name}: only a judge reads it")
        elif name not in _REFUSED:
            draft.refuse(f"{where}.{name}", value, "unknown field of a reward worker", cure="reward.custom")
        elif value and not (isinstance(value, Mapping) and value.get("type") == "no_filter"):
            reason, cure = _REFUSED[name]
            draft.refuse(f"{where}.{name}", value, reason, cure=cure)


def domains_of(workers: Sequence[RewardWorker]) -> dict[str, RewardWorker]:
    """Returns the workers by their domains."""
    return {worker.domain: worker for worker in workers}

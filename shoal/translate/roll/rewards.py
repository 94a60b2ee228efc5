"""ROLL's rewards: the verifier of each tag, its options, and the judge."""

from collections.abc import Mapping, Sequence
from typing import Any

from shoal.config.tables.reward import EVERY_OTHER_NAME
from shoal.translate.roll.engine_fields import VALIDATION_FILES
from shoal.translate.roll.reward_worker import DEFAULT_DOMAIN, RewardWorker, domains_of
from shoal.translate.shared.draft import Draft, Origin, Source

_NGRAM_PENALTY = {"max_penalty": -0.5, "ngram_size": 3, "unit": "words"}
"""The penalty of ROLL's crossthinkqa and ifeval workers: its maximum, and the number of words of a repetition."""
_TEST_S, _TESTS_S = 20.0, 120.0
"""ROLL's time limit for a program's tests, and the time limit of all tests in Shoal."""


_QUESTION = (
    "Does the response come to the same final answer as the reference? SCORE is 1 if it does, else 0.\n\n"
    "Question:\n{question}\n\nReference:\n{reference}\n\nResponse:\n{answer}"
)
"""The question to the judge. ROLL's worker counts a yes as 1, and everything else as 0."""


def compose_rewards(workers: Sequence[RewardWorker], source: Source, draft: Draft) -> None:
    """Sets the verifier of each tag, options of the verifiers, the penalty for repetition, and the judge."""
    origin = Origin("rewards", True)
    remap: dict[str, str] = {}
    for worker in workers:
        for tag in worker.tags:
            if remap.setdefault(tag.lower(), worker.verifier) != worker.verifier:
                where = f"rewards.{worker.domain}.tag_included"
                draft.refuse(where, tag, "another worker scores it differently: set reward.remap", cure="reward.remap")
    if remap or source[VALIDATION_FILES]:
        remap |= _others(workers, source)
        draft.set("reward.remap", remap or None, Origin("rewards: worker_cls and tag_included", True))
    if options := _options(workers, draft):
        draft.set("reward.verifiers", options, origin)
        if "code" in options:
            draft.set("reward.timeout_s", _TESTS_S + 2, origin)
    if penalized := sorted({worker.verifier for worker in workers if worker.penalizes_repetition}):
        draft.set("reward.repetition", _NGRAM_PENALTY | {"verifiers": penalized}, origin)
    _judge(workers, source, draft)
    _describe(workers, draft)


def _others(workers: Sequence[RewardWorker], source: Source) -> dict[str, str]:
    """Returns the verifier of validation questions whose tag no worker lists. Training data have no such tags."""
    default = domains_of(workers).get(DEFAULT_DOMAIN)
    return {EVERY_OTHER_NAME: default.verifier} if default is not None and source[VALIDATION_FILES] else {}


def _options(workers: Sequence[RewardWorker], draft: Draft) -> dict[str, dict[str, Any]]:
    options: dict[str, dict[str, Any]] = {}
    for worker in workers:
        kind = worker.options.get("reward_type")
        if worker.verifier == "code":
            options["code"] = {"partial_credit": False, "timeout_s": _TEST_S, "total_timeout_s": _TESTS_S}
        elif worker.class_name == "CrossThinkQARuleRewardWorker":
            if kind not in ("loose", "soft", "strict"):
                known = "must be loose, soft or strict"
                draft.refuse(f"rewards.{worker.domain}.reward_type", kind, known, cure="reward.verifiers")
            elif options.setdefault("multiple_choice", {"values": kind}) != {"values": kind}:
                reason = "must be the same for all workers, since the verifier multiple_choice has one setting"
                draft.refuse(f"rewards.{worker.domain}.reward_type", kind, reason, cure="reward.verifiers")
        elif kind is not None:
            draft.notes.append(f"rewards.{worker.domain}.reward_type = {kind}: only ROLL's crossthinkqa reads it")
    return options


def _judge(workers: Sequence[RewardWorker], source: Source, draft: Draft) -> None:
    """Sets the model that judges, and the model's address if ROLL calls one."""
    shared = source["reward_model"] or {}
    judges = [worker for worker in workers if worker.verifier == "llm_judge"]
    if not judges:
        if shared:
            draft.notes.append("reward_model: no worker of rewards is a judge, so it is not used")
        return
    where, options = f"rewards.{judges[0].domain}", judges[0].options
    if len(judges) > 1:
        reason = f"Shoal has one judge for all domains, that of {where}: set reward.judge for another"
        draft.refuse(f"rewards.{judges[1].domain}", "", reason, cure="reward.judge")
    generating = options.get("generating_args") or shared.get("generating_args") or {}
    names = (options.get("judge_model_name"), _model_name(shared), _model_name(options))
    model = next((name for name in names if isinstance(name, str) and name), "")
    judge: dict[str, Any] = {"model": model.rstrip("/")} if model else {}
    judge |= {"template": _QUESTION, "min_score": 0, "max_score": 1}
    if options.get("judge_model_type") == "api" and options.get("judge_api_url"):
        judge["base_url"] = options["judge_api_url"]
    if generating.get("temperature") is not None:
        judge["temperature"] = generating["temperature"]
    draft.set("reward.judge", judge, Origin(where, True))
    if "base_url" not in judge:
        draft.notes.append(
            f"{where}: ROLL runs the judge {model}; in Shoal it is a server: start it, and give its address by "
            "--set reward.judge.base_url=...; without it, data whose labels need a judge are refused"
        )
    if options.get("judge_api_key"):
        draft.notes.append(f"{where}.judge_api_key: put the key into a variable that reward.judge.api_key_env names")
    draft.notes.append(
        f"{where}.judge_prompt = {options.get('judge_prompt')}: ROLL's text, which asks for yes or no, is not taken "
        "over: reward.judge.template asks whether the answer agrees with the reference"
    )
    if left := [name for name in generating if name != "temperature"]:
        draft.notes.append(f"{where}.generating_args: {', '.join(left)} are settings of the judge's server")


def _model_name(options: Mapping[str, Any]) -> Any:
    return (options.get("model_args") or {}).get("model_name_or_path")


def _describe(workers: Sequence[RewardWorker], draft: Draft) -> None:
    verifiers = {worker.verifier for worker in workers}
    if any(worker.class_name == "MathRuleRewardWorker" for worker in workers):
        draft.notes.append(
            "verifier math: both compare by math-verify; ROLL reads the answer after </think> or the last empty "
            "line, and Shoal reads the last answer of the completion"
        )
    if "code" in verifiers:
        draft.notes.append(
            "verifier code: labels must be lists of Python tests, like ROLL's with case_type assert; tests with input "
            "need the verifier code_stdio, and tests for pytest must call their functions (docs/rewards.md)"
        )
    if any(worker.options.get("reward_type") == "soft" and worker.verifier == "multiple_choice" for worker in workers):
        draft.notes.append(
            "verifier multiple_choice: a right letter without a box is worth 0.5, and counts as wrong where "
            "grpo.difficulty_* counts correct completions; ROLL counts it as correct there"
        )
    for worker in workers:
        if worker.class_name == "GSM8KMathRewardWorker":
            draft.notes.append(
                f"rewards.{worker.domain}: ROLL's class compares texts after #### (GSM8K) or in the last box (MATH); "
                "math-verify also accepts the same value in another form"
            )
        if worker.class_name == "MultipleChoiceBoxedRuleRewardWorker":
            draft.notes.append(
                f"rewards.{worker.domain}: ROLL's class gives every completion the reward 0; Shoal gives 1 or 0"
            )

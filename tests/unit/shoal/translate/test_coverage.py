"""Tests that every field in the other systems' documents is mapped or refused with a reason."""

import re

import pytest

from shoal.config import RunConfig
from shoal.translate import SYSTEMS, System, translate
from shoal.translate.shared.field import NOT_YET, Fate
from shoal.translate.shared.toml import TABLES
from shoal.translate.sources.settings import Settings
from tests.golden import document

_BASE = ("model.path=m", 'data.sources=[{path = "d.jsonl"}]', "run.num_steps=10", "sampling.max_completion_tokens=64")
# Names in the formulas of mission/000 that are not settings.
_NOT_FIELDS = {
    "effective_batch_size",
    "gradient_accumulation",
    "kl_divergence",
    "per_device_batch_size",
    "policy_loss",
    "ref_param",
    "total_loss",
    "inference_time",
}

# Classes of open-instruct that it builds from its flags, and classes of values at run time.
_NO_SETTINGS = re.compile(
    "(Dataset|Reward|LMJudgeVerifier|CodeVerifier|MaxLengthVerifier|RubricVerifier|Sampling|Env)Config|EnvConfigEntry|"
    "PromptRequest|GenerationResult|RequestInfo|TokenStatistics|ToolCallStats|CompletionOutput|Group|Batch|"
    "PackedSequences|CollatedBatchData|BatchStatistics|Rollout(Record|Metadata|State)"
)


def _unaccounted(system: System, names: set[str]) -> list[str]:
    rows = system.rows
    return sorted(name for name in names - {""} if name not in rows or not (rows[name].to or rows[name].why))


def test_every_field_in_the_principles_of_open_instruct_is_accounted_for() -> None:
    names = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", document("mission/000_*"))) - _NOT_FIELDS
    assert len(names) >= 8
    assert _unaccounted(SYSTEMS["open-instruct"], names) == []


def test_every_field_of_the_experiment_config_of_open_instruct_is_accounted_for() -> None:
    text = document("mission/001_*")
    names = set(re.findall(r"^(\w+): (?:str|int|float|bool|list|Literal|GRPOLossType)\b", text, re.MULTILINE))
    names |= set(re.findall(r"^(\w+)=", text, re.MULTILINE))
    assert len(names) >= 35
    assert _unaccounted(SYSTEMS["open-instruct"], names - {"temperature"}) == []


def test_every_parameter_of_unsloth_is_accounted_for() -> None:
    names = set(re.findall(r'"(\w+)":|config\["(\w+)"\]', document("mission/002_*")))
    tasks = {"math_reasoning", "instruction_following"}
    assert _unaccounted(SYSTEMS["unsloth"], {first or second for first, second in names} - tasks) == []


def test_every_parameter_of_roll_is_accounted_for() -> None:
    text = document("mission/003_*")
    names = set(re.findall(r"^(\w+): (?=\S)", text, re.MULTILINE))
    assert len(names) >= 15
    assert _unaccounted(SYSTEMS["roll"], names) == []


def test_every_flag_in_the_guide_of_open_instruct_is_accounted_for() -> None:
    names = set(re.findall(r"--(\w+)", document("mission/004_*")))
    assert len(names) >= 35
    assert _unaccounted(SYSTEMS["open-instruct"], names) == []


def test_every_field_in_the_code_of_open_instruct_is_accounted_for() -> None:
    section = document("reference/open-instruct.md").split("## 1.1 Fields")[1].split("## 1.2")[0]
    missing = []
    for part in section.split("\n#### ")[1:]:
        name = part.split()[0]
        if _NO_SETTINGS.fullmatch(name):
            continue
        fields = set(re.findall(r"^\| (\w+) \|", part, re.MULTILINE)) - {"field"}
        missing += [f"{name}.{field}" for field in _unaccounted(SYSTEMS["open-instruct"], fields)]
    assert missing == []


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
def test_every_row_maps_to_fields_that_exist_or_has_a_reason(system: System) -> None:
    for row in system.table:
        for target in row.to:
            section, _, key = target.partition(".")
            if target in TABLES:
                continue
            inner = RunConfig.model_fields[section].annotation
            assert key in getattr(inner, "model_fields", {}), f"{row.name} maps to {target}, which is not a field"
        if row.fate is Fate.MAPPED:
            assert row.to or row.why, f"{row.name} maps to nothing and gives no reason"
        elif row.fate is not Fate.ACCEPTED:
            assert row.why, f"{row.name} has no reason"
        if row.fate is Fate.NOT_YET:
            assert row.why in NOT_YET, f"{row.name} is marked as not yet available, but its reason is not in NOT_YET"
    names = [name for row in system.table for name in row.spellings]
    assert len(names) == len(set(names)), (
        f"duplicate names: {sorted({name for name in names if names.count(name) > 1})}"
    )


def test_not_yet_lists_exactly_the_features_that_fields_wait_for() -> None:
    used = {row.why for system in SYSTEMS.values() for row in system.table if row.fate is Fate.NOT_YET}
    assert set(NOT_YET) == used


_NEEDED = {"verl": {"algorithm.adv_estimator": "grpo"}}
"""Settings whose default would refuse every configuration."""
_SAMPLES: dict[str, list[object]] = {
    "text": ["text", ""],
    "integer": [7, 0, -1, "many", 1e400],
    "number": [0.7, 0, -1, "much"],
    "flag": [True, False, "maybe"],
    "texts": [["a", "1"], [], "a"],
    "integers": [[2], [], 3],
    "numbers": [[0.1, 0.2], [1]],
    "table": [{}, {"a": 1}, 3],
    "any": [1, "x", [1], {"a": 1}],
}


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
def test_every_known_field_is_read_and_named_in_the_output(system: System) -> None:
    for row in system.table:
        if row.name.endswith(".*"):
            continue
        for value in (row.default, None, *_SAMPLES[row.kind]):
            result = translate(system, Settings({**_NEEDED.get(system.name, {}), row.name: value}), overrides=_BASE)
            unread = [str(refusal) for refusal in result.refusals if "was not read" in refusal.reason]
            assert not unread, f"{row.name} = {value}: {unread}"
            said = "\n".join([result.toml, *result.notes, *map(str, result.refusals)])
            is_set_by_us = any(setting.partition("=")[0] in row.to for setting in _BASE)
            is_read = bool(result.toml) and value is not None and not is_set_by_us
            assert row.name in said or not is_read, f"{row.name} = {value} is not in the output"


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=lambda system: system.name)
def test_a_refusal_names_the_refused_field(system: System) -> None:
    for row in system.table:
        if row.fate not in (Fate.REFUSED, Fate.NOT_YET, Fate.OUTSIDE) or row.name.endswith(".*"):
            continue
        value = "other" if row.kind in ("text", "any") else 12345 if row.kind in ("integer", "number") else True
        value = ["other"] if row.kind == "texts" else value
        if row.kind == "flag" and True in [accepted for accepted in row.accepts if isinstance(accepted, bool)]:
            value = False
        base = [setting for setting in _BASE if setting.partition("=")[0] not in row.to]
        result = translate(system, Settings({row.name: value}), overrides=base)
        named = [refusal for refusal in result.refusals if refusal.name == row.name]
        if row.kind == "flag" and not named:
            continue  # Both values are accepted.
        assert named, f"{row.name} = {value} is not refused"
        assert named[0].blocks == (row.fate is not Fate.OUTSIDE)

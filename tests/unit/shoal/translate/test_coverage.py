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
# Names in the formulas of mission/000, and tasks in mission/002.
_NOT_FIELDS = {
    "effective_batch_size",
    "gradient_accumulation",
    "kl_divergence",
    "per_device_batch_size",
    "policy_loss",
    "ref_param",
    "total_loss",
    "inference_time",
    "instruction_following",
    "math_reasoning",
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


@pytest.mark.parametrize(
    ("system", "page", "pattern", "least"),
    [
        ("open-instruct", "mission/000_*", r"\b[a-z]+(?:_[a-z]+)+\b", 8),
        ("open-instruct", "mission/001_*", r"^(\w+)(?:=|: (?:str|int|float|bool|list|Literal|GRPOLossType)\b)", 35),
        ("unsloth", "mission/002_*", r'"(\w+)":|config\["(\w+)"\]', 1),
        ("roll", "mission/003_*", r"^(\w+): (?=\S)", 15),
        ("open-instruct", "mission/004_*", r"--(\w+)", 35),
    ],
)
def test_every_field_in_a_document_is_accounted_for(system: str, page: str, pattern: str, least: int) -> None:
    found = re.finditer(pattern, document(page), re.MULTILINE)
    names = {match[match.lastindex or 0] for match in found} - _NOT_FIELDS
    assert len(names) >= least
    assert _unaccounted(SYSTEMS[system], names) == []


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
    for number, row in enumerate(system.table):
        if row.name.endswith(".*"):
            continue
        usual, *others = _SAMPLES[row.kind]
        for value in (row.default, None, usual, others[number % len(others)]):
            result = translate(system, Settings({**_NEEDED.get(system.name, {}), row.name: value}), overrides=_BASE)
            unread = [str(refusal) for refusal in result.refusals if "did not translate it" in refusal.reason]
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

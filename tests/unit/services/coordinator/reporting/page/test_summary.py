from pathlib import Path

import pytest

from services.coordinator.reporting.page.summary import (
    fate_of_groups,
    key_numbers,
    pass_rates,
    rates_by_source,
    settings,
    verdict,
)
from services.coordinator.store.run_record import RunRecord
from shoal.config import parse_config
from shoal.config.tables.learner import LearnerConfig
from tests.support.wordings import has_all, numbers_in

RATE, CHANGE = "eval/verifiable_correct_rate", "eval/correct_rate_change"
CONFIG = parse_config({"model": {"path": "m"}, "data": {"sources": [{"task": "arithmetic"}, {"path": "mine.jsonl"}]}})


def evaluation(step: int, rate: float) -> dict[str, float]:
    return {"step": step, "eval/num_prompts": 200, RATE: rate}


@pytest.mark.parametrize(
    ("low", "high", "verdict_on_it"), [(0.05, 0.25, "more than noise"), (-0.05, 0.35, "within noise")]
)
def test_a_change_within_its_interval_is_called_noise(low: float, high: float, verdict_on_it: str) -> None:
    change = {CHANGE: 0.15, f"{CHANGE}_low": low, f"{CHANGE}_high": high}
    text = verdict([evaluation(0, 0.32), {**evaluation(20, 0.47), **change}])
    assert numbers_in(text)[:4] == ["20", "47.0%", "200", "15.0"] and text.endswith(f" {verdict_on_it}."), text


def test_one_evaluation_has_no_change_and_an_unscored_one_no_rate() -> None:
    assert numbers_in(verdict([evaluation(0, 0.32)])) == ["0", "32.0%", "200"]
    assert verdict([{"step": 0, "eval/num_prompts": 200}]) == "No answer is scored."


def test_key_numbers_are_those_of_the_last_step_that_has_them() -> None:
    record = RunRecord("run", Path("/runs/run"), policy_version=3, num_steps=20)
    steps = [{"step": 1, "objective/scores": 0.1}, {"step": 2, "objective/scores": 0.4}, {"step": 3}]
    facts = {fact.name: (fact.value, fact.note) for fact in key_numbers(record, steps, [])}
    assert facts == {"Train steps": ("3", "of 20"), "Reward": ("0.4", "0.1 at step 1")}


def test_a_run_whose_configuration_is_lost_still_has_a_beginning_and_a_folder() -> None:
    record = RunRecord("run", Path("/runs/run"), create_time_s=0.0, attempt=2)
    facts = {fact.name: fact.value for fact in settings(record, None)}
    assert facts == {"Began": "1970-01-01 00:00 UTC", "Resumed": "2 times", "Folder": "/runs/run"}
    assert {"Model": "m", "Prompts": "arithmetic, mine.jsonl"}.items() <= {
        fact.name: fact.value for fact in settings(record, CONFIG)
    }.items()


def test_a_run_that_trains_adapters_says_which() -> None:
    lora = {"rank": 16, "target_modules": ["q_proj", "v_proj"], "quantization": "nf4"}
    config = CONFIG.model_copy(update={"learner": LearnerConfig.model_validate({"lora": lora})})
    facts = {fact.name: (fact.value, fact.note) for fact in settings(RunRecord("run", Path("/runs/run")), config)}
    value, note = facts["Adapters"]
    assert value == "rank 16" and has_all(note, "alpha 32", "q_proj", "v_proj", "nf4"), note


def test_groups_are_counted_by_what_became_of_them() -> None:
    groups = {"TRAINED": 1200, "DROPPED": 5, "ISSUED": 2, "SCORED": 1}, {"timeout": 1, "no_signal": 4}
    for has_ended, word in ((False, "under way"), (True, "discarded")):
        text = fate_of_groups(*groups, has_ended=has_ended)
        assert has_all(text, "(4 no_signal, 1 timeout)", f" 3 {word}") and numbers_in(text)[:2] == ["1,200", "5"], text
    assert fate_of_groups({}, {}, has_ended=False) == ""


def test_several_sources_have_rates_of_their_own_and_one_is_the_whole() -> None:
    row = {
        **evaluation(4, 0.5),
        "eval/source/easy/scores": 1.5,
        "eval/source/easy/correct_rate": 0.75,
        "eval/source/easy/correct_rate_low": 0.6,
        "eval/source/easy/correct_rate_high": 0.9,
    }
    assert rates_by_source(row) == []
    hard = {"eval/source/a/hard:1/scores": 0.25, "eval/source/a/hard:1/correct_rate": 0.25}
    assert rates_by_source(row | hard) == [("easy", 0.75, 0.6, 0.9, 1.5), ("a/hard:1", 0.25, None, None, 0.25)]


def test_pass_at_k_is_shown_in_the_order_of_k_without_its_intervals() -> None:
    row = {"eval/pass_at_16": 0.9, "eval/pass_at_1": 0.2, "eval/pass_at_4": 0.5, "eval/pass_at_4_low": 0.3}
    assert pass_rates(row) == [(4, 0.5), (16, 0.9)]

from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from shoal.config import dump_config, parse_config
from shoal.config.changes import changed_config, changed_fields, fixed_fields
from shoal.config.load import load_overrides
from shoal.errors import InvalidArgument

BEGUN: dict[str, Any] = {
    "model": {"path": "m"},
    "data": {"sources": [{"path": "d.jsonl"}]},
    "run": {"num_steps": 20, "seed": 3},
    "learner": {"learning_rate": 1e-5, "zero_stage": 1},
    "evaluation": {"sources": [{"task": "arithmetic"}], "num_prompts": 50},
    "reward": {"weights": {"gsm8k": 2.0}, "judge": {"base_url": "http://h/v1", "model": "j"}},
}


def resumed(*overrides: str, begun: dict[str, Any] = BEGUN) -> Any:
    """The dumped configuration of a run that is resumed with --set, as it travels."""
    struct = json_format.ParseDict(load_overrides(overrides), Struct())
    return dump_config(changed_config(parse_config(begun), struct))


def test_changes_are_made_and_everything_else_stays() -> None:
    config = resumed("run.num_steps=40", "learner.learning_rate=2e-6", "reward.weights.math=0.5")
    expected = dump_config(parse_config(BEGUN))
    expected["run"]["num_steps"] = 40
    expected["learner"]["learning_rate"] = 2e-6
    expected["reward"]["weights"] = {"gsm8k": 2.0, "math": 0.5}
    assert config == expected


@pytest.mark.parametrize(
    ("override", "field", "why"),
    [
        ("run.seed=4", "run.seed", "order of the prompts"),
        ("run.name=other", "run.name", "name"),
        ("model.path=n", "model.path", "weights of this model"),
        ("data.shuffle=false", "data.shuffle", "order of these prompts"),
        ("learner.zero_stage=2", "learner.zero_stage", "files of the checkpoint"),
    ],
)
def test_a_field_that_the_ledger_or_the_checkpoint_depends_on_is_refused_with_the_reason(
    override: str, field: str, why: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        resumed(override, "learner.learning_rate=1e-4")
    assert [violation.field for violation in caught.value.violations] == [field]
    assert why in caught.value.violations[0].description and f"{field}: " in caught.value.message
    missing = [name for name, _ in fixed_fields() if name not in caught.value.message]
    assert not missing, f"the message does not say that {missing} are fixed"


def test_a_fixed_field_may_be_given_with_the_value_that_it_has() -> None:
    assert resumed("run.seed=3", "model.path=m") == dump_config(parse_config(BEGUN))


def test_values_that_are_not_valid_are_refused_with_the_field() -> None:
    with pytest.raises(InvalidArgument, match=r"grpo\.group_size"):
        resumed("grpo.group_size=0")
    with pytest.raises(InvalidArgument, match=r"grpo\.group_sise: .*'group_size'"):
        resumed("grpo.group_sise=4")
    with pytest.raises(InvalidArgument, match="finite"):
        resumed("learner.learning_rate=nan")


def test_steps_and_episodes_replace_each_other() -> None:
    begun = BEGUN | {"run": {"total_episodes": 640}}
    assert resumed(begun=begun)["run"]["num_steps"] == 10
    extended = resumed("run.num_steps=15", begun=begun)["run"]
    assert extended["num_steps"] == 15 and "total_episodes" not in extended
    assert resumed("run.total_episodes=1280", begun=begun)["run"]["num_steps"] == 20
    assert resumed("run.total_episodes=1280")["run"]["num_steps"] == 20
    with pytest.raises(InvalidArgument, match=r"run\.num_steps \(15\) .*run\.total_episodes \(1280"):
        resumed("run.num_steps=15", "run.total_episodes=1280")


def test_epochs_are_counted_again_only_where_they_change() -> None:
    begun = BEGUN | {"run": {"total_epochs": 2, "num_steps": 40}}
    same = resumed(begun=begun)["run"]
    assert (same["num_steps"], same["total_epochs"]) == (40, 2), same
    more = resumed("run.total_epochs=3", begun=begun)["run"]
    assert (more["num_steps"], more["total_epochs"]) == (0, 3), "the data decide"
    assert "total_epochs" not in resumed("run.num_steps=50", begun=begun)["run"]
    assert "total_epochs" not in resumed("run.total_episodes=1280", begun=begun)["run"]
    with pytest.raises(InvalidArgument, match=r"grpo\.groups_per_step \(8 -> 4\) .*run\.num_steps"):
        resumed("grpo.groups_per_step=4", begun=begun)


@pytest.mark.parametrize("step_size", ["grpo.groups_per_step=4", "grpo.group_size=16"])
@pytest.mark.parametrize("episodes", [(), ("run.total_episodes=1280",)])
def test_episodes_are_not_divided_by_a_step_size_that_past_steps_did_not_have(
    step_size: str, episodes: tuple[str, ...]
) -> None:
    begun = BEGUN | {"run": {"total_episodes": 640}}
    with pytest.raises(InvalidArgument, match=r"\(64 -> (32|128)\) .*run\.num_steps") as caught:
        resumed(step_size, *episodes, begun=begun)
    assert [violation.field for violation in caught.value.violations] == ["run.num_steps"]
    run = resumed(step_size, "run.num_steps=15", begun=begun)["run"]
    assert run["num_steps"] == 15 and "total_episodes" not in run, run
    same_size = resumed("grpo.groups_per_step=4", "grpo.group_size=16", begun=begun)["run"]
    assert same_size["num_steps"] == 10, same_size


@pytest.mark.parametrize("section", ["run=5", "run=null"])
def test_a_section_that_is_no_table_is_refused_with_its_name(section: str) -> None:
    with pytest.raises(InvalidArgument, match="run"):
        resumed(section)


def test_the_items_of_a_list_are_changed_by_their_index() -> None:
    sources = resumed("evaluation.sources.0.task_seed=9")["evaluation"]["sources"]
    assert [(source["task"], source["task_seed"]) for source in sources] == [("arithmetic", 9)]
    with pytest.raises(InvalidArgument, match=r"evaluation\.sources: '1' "):
        resumed("evaluation.sources.1.task_seed=9")


def test_null_is_the_default_of_a_field() -> None:
    struct = json_format.ParseDict({"evaluation": {"num_prompts": None}}, Struct())
    assert changed_config(parse_config(BEGUN), struct).evaluation.num_prompts == 200


def test_the_coefficient_of_the_kl_cannot_change_while_it_adapts() -> None:
    assert resumed("kl.coef=0.2", begun=BEGUN | {"kl": {"coef": 0.1}})["kl"]["coef"] == 0.2
    with pytest.raises(InvalidArgument, match=r"kl\.coef: kl\.target adapts the coefficient"):
        resumed("kl.coef=0.2", begun=BEGUN | {"kl": {"coef": 0.1, "target": 0.05}})


def test_changes_are_described_without_what_may_be_a_key() -> None:
    before = parse_config(BEGUN)
    changes = {"run": {"num_steps": 40}, "reward": {"judge": {"base_url": "http://other/v1"}, "timeout_s": 3}}
    assert changed_fields(before, changed_config(before, changes)) == {
        "reward.judge.base_url": "... -> ...",
        "reward.timeout_s": "10.0 -> 3.0",
        "run.num_steps": "20 -> 40",
    }


def test_a_run_may_be_resumed_with_another_number_of_learner_ranks() -> None:
    assert resumed("launch.num_learner_ranks=2")["launch"]["num_learner_ranks"] == 2

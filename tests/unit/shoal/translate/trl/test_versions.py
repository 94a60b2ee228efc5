"""TRL's versions: a file with a field that TRL has no more relies on the defaults of its time."""

from pathlib import Path

import pytest

from shoal.errors import InvalidArgument
from shoal.translate import SYSTEMS, Translation, translation
from shoal.translate.sources.reading import read_settings
from shoal.translate.sources.settings import Settings
from shoal.translate.trl.versions import DECEMBER, FEBRUARY, MAY
from shoal.translate.version import choose_version

FILE = {"model_name_or_path": "m", "dataset_name": "d", "max_steps": 5, "num_generations": 8}


def translate(as_of: str = "", **values: object) -> Translation:
    trl = SYSTEMS["trl"]
    return translation.translate(trl, Settings(FILE | values), version=choose_version(trl, as_of=as_of))


@pytest.mark.parametrize(
    ("fields", "month", "completion", "gradient"),
    [({}, "", 512, "bias_corrected"), ({"max_prompt_length": 300}, DECEMBER, 256, "plain")],
)
def test_a_field_that_is_gone_decides_the_defaults(
    fields: dict[str, object], month: str, completion: int, gradient: str
) -> None:
    translated = translate(beta=0.01, **fields)
    values = translated.values
    assert values["sampling"]["max_completion_tokens"] == completion
    assert values["kl"]["gradient"] == gradient
    assert values["correction"]["weight"] == "sequence"
    assert ("# Defaults " in translated.toml) == bool(month)
    assert any("--as-of 2025-02" in note for note in translated.notes) == bool(month)


def test_fields_of_the_first_versions_decide_before_the_others() -> None:
    translated = translate(vllm_device="auto", max_prompt_length=300, vllm_max_model_len=812, system_prompt="s")
    assert FEBRUARY in translated.toml
    values = translated.values
    assert (values["sampling"]["max_completion_tokens"], values["sampling"]["temperature"]) == (256, 0.9)
    assert values["loss"]["aggregation"] == "seq-mean-token-mean"
    assert values["generator"]["max_model_len"] == 812
    assert values["kl"]["coef"] == pytest.approx(0.04)
    assert values["correction"]["weight"] == "none"
    assert any("0.16 and 0.17" in note for note in translated.notes)


def test_a_table_where_a_name_is_expected_is_refused_unless_data_are_given() -> None:
    table = {"data_files": "file.json"}
    (refusal,) = translate(dataset_config=table).blocking
    assert refusal.name == "dataset_config" and "table" in refusal.reason
    data = ['data.sources=[{path = "d.jsonl"}]']
    assert translation.translate(SYSTEMS["trl"], Settings(FILE | {"dataset_config": table}), overrides=data).toml


def test_the_asynchronous_trainer_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "file.py"
    path.write_text("AsyncGRPOTrainer(model='m', args=AsyncGRPOConfig(max_staleness=4))\n")
    with pytest.raises(InvalidArgument, match=r"AsyncGRPOConfig .*grpo\.max_staleness"):
        read_settings(SYSTEMS["trl"], [str(path)])


def test_a_chosen_month_decides_over_the_fields() -> None:
    translated = translate(as_of=MAY, max_prompt_length=300)
    assert MAY in translated.toml
    assert translated.values["correction"]["weight"] == "none"
    assert not any("--as-of 2025-02" in note for note in translated.notes)

"""Defaults of open-instruct at the time at which a script was written."""

import re
from pathlib import Path

import pytest

from shoal.errors import InvalidArgument
from shoal.translate import SYSTEMS, translate_arguments
from shoal.translate.open_instruct import DEFAULTS_AS_OF
from shoal.translate.shared.field import read_value
from shoal.translate.sources.settings import Settings
from shoal.translate.version import Version, with_defaults
from tests.golden import document
from tests.support.translations import parsed

MODEL_AND_DATA = ("model.path=m", 'data.sources=[{path = "d.jsonl"}]')
FEBRUARY = "2026-02"


def differing(stated: dict[str, str]) -> dict[str, tuple[object, object]]:
    """Returns the fields whose default in February is not the one that a page states, with both values."""
    system, _ = with_defaults(SYSTEMS["open-instruct"], Version(month=FEBRUARY), Settings())
    rows = system.rows
    pairs = {name: (rows[name].default, read_value(rows[name].kind, text)) for name, text in stated.items()}
    ignored = {name for name in stated if not rows[name].to}  # Their defaults decide nothing here.
    return {name: (ours, theirs) for name, (ours, theirs) in pairs.items() if ours != theirs and name not in ignored}


def test_the_defaults_of_february_are_those_that_the_experiment_config_states() -> None:
    signature = document("mission/001_*").split("Usage Examples")[0]
    stated = dict(re.findall(r"^(\w+): [^=\n]+ = (.+)$", signature, re.MULTILINE))
    stated = {name: text.strip("\"'") for name, text in stated.items() if "(" not in text}
    stated["loss_fn"] = stated["loss_fn"].removeprefix("GRPOLossType.")
    assert len(stated) >= 25 and stated["clip_higher"] == "0.2", stated
    assert differing(stated) == {}


def test_the_defaults_of_february_are_those_that_the_guide_states() -> None:
    table = document("mission/004_*").split("Key Flags")[1].split("grpo_fast.py\n")[0]
    stated = {name: words.split()[-1] for name, words in re.findall(r"--(\w+) (.+)$", table, re.MULTILINE)}
    # A dash: no default.
    stated = {name: text for name, text in stated.items() if text.isascii()}
    assert len(stated) >= 35 and stated["async_steps"] == "1", stated
    assert differing(stated) == {}


def test_the_example_of_the_experiment_config_gets_the_defaults_of_its_time(tmp_path: Path) -> None:
    example = re.search(r"^config = ExperimentConfig\(.*?^\)$", document("mission/001_*"), re.MULTILINE | re.DOTALL)
    assert example is not None
    script = tmp_path / "example.py"
    script.write_text(example[0])
    config, now = (
        parsed(translate_arguments("open-instruct", [str(script)], overrides=MODEL_AND_DATA, as_of=month))
        for month in (FEBRUARY, "")
    )
    assert (config.grpo.max_staleness, config.sampling.temperature, config.correction.weight) == (1, 0.7, "none")
    assert (now.grpo.max_staleness, now.sampling.temperature, now.correction.weight) == (8, 1.0, "token")
    assert (config.run.seed, config.loss.clip_high) == (42, 0.28), "what the example sets"
    assert config.weights.inflight_updates is False and config.advantage.scale == "group_std"


def test_flags_of_the_guide_get_the_defaults_of_their_time() -> None:
    flags = ["--model_name_or_path", "m", "--dataset_mixer_list", "d.jsonl", "1.0", "--async_steps", "4"]
    translation = translate_arguments("open-instruct", flags, as_of=FEBRUARY)
    config = parsed(translation)
    assert (config.run.seed, config.loss.clip_high, config.sampling.temperature) == (1, 0.2, 0.7)
    assert (config.grpo.max_staleness, config.checkpoint.every_steps) == (4, 1_000_000)
    assert translation.toml.count(FEBRUARY) > 1 and "# clip_higher = 0.2 (" in translation.toml


def test_a_correction_that_flags_ask_for_is_not_turned_off_by_the_default_of_an_older_one() -> None:
    flags = ["--model_name_or_path", "m", "--rho_clamp_upper_bound", "3"]
    config = parsed(translate_arguments("open-instruct", flags, as_of=FEBRUARY))
    assert (config.correction.weight, config.correction.weight_high) == ("token", 3.0)


def test_a_month_without_known_defaults_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"2025-11 is .* 2026-02 or 2026-08; .* --checkout DIR"):
        translate_arguments("open-instruct", ["--seed", "1"], as_of="2025-11")
    for system in ("roll", "unsloth", "verl"):
        with pytest.raises(InvalidArgument, match=rf"--as-of 2026-02: .* {system}: "):
            translate_arguments(system, ["--seed", "1"], as_of=FEBRUARY)


def test_every_default_of_another_time_is_one_of_a_field() -> None:
    names = SYSTEMS["open-instruct"].rows.keys()
    assert {name for defaults in DEFAULTS_AS_OF.values() for name in defaults} <= names

"""Tests that the recipes load and cover every script in open-instruct's guide."""

import re
from pathlib import Path

import pytest

from shoal.config import load_config
from shoal.config.derived import derived_values
from shoal.translate import SYSTEMS, translate_arguments
from shoal.translate.shared.field import Fate
from tests.golden import document
from tests.support.open_instruct_scripts import SCRIPTS, config_of_script
from tests.support.repository import ROOT

RECIPES = ROOT / "configs" / "recipes"
_LACKING = (Fate.REFUSED, Fate.ACCEPTED, Fate.NOT_YET)


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_is_a_valid_configuration(path: Path) -> None:
    config = load_config(path)
    assert config.data.sources and config.run.num_steps >= 3
    assert config.learner.adam_beta2 == 0.999, "open-instruct's AdamW is torch's"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_recipe_leaves_out_only_features_that_shoal_lacks(path: Path) -> None:
    head, _, _ = path.read_text(encoding="utf-8").partition("\n\n")
    left_out = re.findall(r"^#   (\w+) = ", head, re.MULTILINE)
    lacking = {row.name for row in SYSTEMS["open-instruct"].table if row.fate in _LACKING}
    # A template without a counterpart may be left out as well.
    assert set(left_out) <= lacking | {"chat_template_name"}
    (row,) = (line for line in (RECIPES / "README.md").read_text().splitlines() if line.startswith(f"| [{path.name}]"))
    assert re.findall(r"`(\w+)`", row) == left_out


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_clone_of_open_instruct_completes_a_recipe(path: Path, tmp_path: Path) -> None:
    head, _, _ = path.read_text(encoding="utf-8").partition("\n\n")
    left_out = dict(re.findall(r"^#   (\w+) = (\S+):", head, re.MULTILINE))
    assert ("--checkout DIR DIR/scripts/train/" in head) == bool(left_out)
    package = tmp_path / "open_instruct"
    package.mkdir()
    (package / "grpo_fast.py").write_text("class Args:\n    beta: float = 0.5\nArgumentParserPlus((Args, Args))\n")
    template = left_out.get("chat_template_name", "none")
    (package / "dataset_transformation.py").write_text(f"CHAT_TEMPLATES = {{{template!r}: 'a template'}}\n")
    flags = [part for name, value in left_out.items() for part in (f"--{name}", value)]
    translation = translate_arguments("open-instruct", ["--model_name_or_path", "m", *flags], checkout=tmp_path)
    assert translation.toml, [str(refusal) for refusal in translation.blocking]
    assert ("a template" in translation.toml) == ("chat_template_name" in left_out)


def test_every_script_of_the_guide_has_a_recipe_or_a_reason() -> None:
    scripts = set(re.findall(r"scripts/train/((?!build)[\w/]+\.sh)", document("mission/004_*")))
    readme = (RECIPES / "README.md").read_text(encoding="utf-8")
    assert len(scripts) >= 18
    assert sorted(script for script in scripts if script not in readme) == []


def test_every_script_with_tools_is_translated() -> None:
    assert len(SCRIPTS) == 14 and {script.split("/")[1] for script in SCRIPTS} == {"tools", "envs"}


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_with_tools_becomes_a_valid_configuration_of_episodes(script: str) -> None:
    config = config_of_script(script)
    assert config.environments and config.plays_episodes
    assert config.episodes.max_tool_calls == config.episodes.max_turns in (3, 5, 10, 20, 30)


def test_a_script_with_a_game_and_tools_has_both() -> None:
    sandbox = config_of_script("debug/envs/wordle_sandbox_lm_8gpu.sh")
    (environment,) = sandbox.environments
    assert environment.settings["environment"] == {"source": "wordle"}
    assert [tool["source"] for tool in environment.settings["tools"]] == ["sandbox"]
    assert (sandbox.episodes.max_turn_tokens, sandbox.episodes.tool_parser) == (512, "qwen3_xml")


def test_the_tulu_3_recipe_has_the_settings_of_its_script() -> None:
    config = load_config(RECIPES / "tulu3-8b-grpo-fast-single-node.toml")
    derived = derived_values(config)
    assert (derived["world_size"], derived["num_generator_gpus"]) == (6, 2)
    assert (derived["completions_per_step"], derived["optimizer_steps_per_step"]) == (1024, 2)
    assert derived["train_steps"] == 2_000_000 // 1024
    assert (config.kl.coef, config.kl.estimator, config.kl.input_clamp) == (0.01, "k3", 40.0)
    assert (config.advantage.scale, config.loss.clip_high, config.grpo.max_staleness) == ("none", 0.272, 8)
    assert (config.correction.weight, config.correction.weight_high) == ("token", 2.0)
    assert [source.weight for source in config.data.sources] == [10.0], "verification_reward"

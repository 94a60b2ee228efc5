"""Chat templates, prompts and defaults from a checkout of open-instruct."""

from pathlib import Path

import pytest

from shoal.config import RunConfig
from shoal.errors import InvalidArgument
from shoal.translate import Translation, translate_arguments
from shoal.translate.open_instruct.checkout import read_checkout
from tests.support.translations import parsed

TRAINER = """
import sys
from open_instruct import grpo_utils as config_lib, utils
from open_instruct.grpo_utils import TokenizerConfig
sys.exit("a checkout is never run")
parser = utils.ArgumentParserPlus((config_lib.GRPOExperimentConfig, TokenizerConfig))
parser.set_defaults(exp_name="grpo", warmup_ratio=0.25)
"""
BASES = """
class Base:
    exp_name: str = "experiment"
    seed: int = 7
"""
CONFIGS = """
from open_instruct import olmo_core_utils
from dataclasses import dataclass
class GRPOExperimentConfig(olmo_core_utils.Base, elsewhere.Mixin):
    seed: int = 43
    beta: float = 0.5
    loss_fn: GRPOLossType = GRPOLossType.cispo
    num_learners_per_node: list[int] = field(default_factory=lambda: [1, 2])
    stop_strings: list[str] = field(default_factory=list)
    temperature: float = field(default=0.3, init=False)
    _parsed: list[str] = field(default_factory=list, init=False)
    code_api_url: str = field(default_factory=lambda: os.environ["URL"])
    brand_new: int = 1
class TokenizerConfig:
    vllm_top_p: float = 1.0
class OtherConfig:
    learning_rate: float = 1.0
"""
TEMPLATES = """
CHAT_TEMPLATES = {"own": "A {{ messages }}" " B", "sum": "C" + "D", "computed": make(), "plain": ("E" f"F" "G"),
    "filled": f"{name}"}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "clone" / "open_instruct"
    package.mkdir(parents=True)
    (package / "grpo_fast.py").write_text(TRAINER)
    (package / "grpo_utils.py").write_text(CONFIGS)
    (package / "olmo_core_utils.py").write_text(BASES)
    (package / "another.py").write_text("class Base:\n    seed: int = 99\n    learning_rate: float = 1.0\n")
    (package / "dataset_transformation.py").write_text(TEMPLATES)
    (tmp_path / "clone" / "prompt.txt").write_text("Answer briefly.\n")
    return tmp_path / "clone"


def translate(folder: Path, *flags: str) -> Translation:
    return translate_arguments("open-instruct", ["--model_name_or_path", "m", *flags], checkout=folder)


def config_of(folder: Path, *flags: str) -> RunConfig:
    return parsed(translate(folder, *flags))


def test_defaults_are_those_of_the_classes_that_the_trainer_parses(folder: Path) -> None:
    defaults = read_checkout(folder).defaults
    assert defaults == {
        "exp_name": "grpo",
        "warmup_ratio": 0.25,
        "seed": 43,
        "beta": 0.5,
        "loss_fn": "cispo",
        "num_learners_per_node": [1, 2],
        "stop_strings": [],
        "brand_new": 1,
        "vllm_top_p": 1.0,
    }


def test_a_translation_has_the_defaults_of_the_checkout_and_names_fields_that_are_new_there(folder: Path) -> None:
    config = config_of(folder)
    assert (config.run.seed, config.kl.coef, config.loss.objective) == (43, 0.5, "cispo")
    assert config.launch.num_learner_ranks == 3
    translation = translate(folder)
    assert "# beta = 0.5 (" in translation.toml and any(note.endswith(": brand_new") for note in translation.notes)


def test_a_default_of_the_checkout_that_shoal_refuses_is_refused(folder: Path) -> None:
    path = folder / "open_instruct" / "grpo_utils.py"
    path.write_text(
        path.read_text().replace("    beta", "    tools: list[str] = field(default_factory=lambda: ['x'])\n    beta")
    )
    assert [refusal.name for refusal in translate(folder).blocking] == ["tools"]
    assert not translate(folder, "--tools", "none").blocking


def test_a_template_is_taken_by_name_and_unknown_names_mean_the_tokenizers_own(folder: Path) -> None:
    assert config_of(folder, "--chat_template_name", "own").model.chat_template.startswith("A {{")
    with_bos = config_of(folder, "--chat_template_name", "sum", "--add_bos").model.chat_template
    assert with_bos == "{{ bos_token }}CD"
    assert config_of(folder, "--chat_template_name", "plain").model.chat_template == "EFG"
    unknown = translate(folder, "--chat_template_name", "olmo123")
    assert "chat_template" not in unknown.values["model"]
    assert any("olmo123: " in note for note in unknown.notes)


@pytest.mark.parametrize("name", ["computed", "filled"])
def test_a_template_that_only_a_run_could_show_is_refused(folder: Path, name: str) -> None:
    (refusal,) = translate(folder, "--chat_template_name", name).blocking
    assert "when it runs" in refusal.reason


def test_a_prompt_file_is_found_in_the_checkout(folder: Path) -> None:
    config = config_of(folder, "--system_prompt_override_file", "prompt.txt")
    assert config.data.sources[0].system_prompt == "Answer briefly."
    (refusal,) = translate(folder, "--system_prompt_override_file", "nowhere.txt").blocking
    assert "no such file" in refusal.reason


def test_without_a_checkout_the_refusal_asks_for_it() -> None:
    for flags in (["--chat_template_name", "olmo_thinker"], ["--system_prompt_override_file", "prompt.txt"]):
        (refusal,) = translate_arguments("open-instruct", ["--model_name_or_path", "m", *flags]).blocking
        assert "--checkout DIR" in refusal.reason


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"there is no open_instruct/grpo_fast\.py"):
        translate(tmp_path)
    with pytest.raises(InvalidArgument, match="give one of them"):
        translate_arguments("open-instruct", ["--seed", "1"], checkout=tmp_path, as_of="2026-02")
    with pytest.raises(InvalidArgument, match="trl"):
        translate_arguments("trl", ["--seed", "1"], checkout=tmp_path)

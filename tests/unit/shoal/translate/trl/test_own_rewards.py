"""Tests of reward functions in the source's own file."""

from pathlib import Path

import pytest

from services.reward.custom.custom_verifiers import read_code
from services.reward.custom.loading import load
from shoal.translate import Translation, translate_arguments
from tests.support.translations import parsed, translate_file

SCRIPT = """
from functools import partial
from trl import GRPOConfig, GRPOTrainer
from trl.rewards import accuracy_reward, think_format_reward
from beside import imported

def text_of(completion):
    return completion[0]["content"]

def Correct(prompts, completions, answer, **kwargs):
    return [float(text_of(one) == right) for one, right in zip(completions, answer)]

def short(completions, **kwargs):
    return [float(len(one) < kwargs["limit"][0]) for one in completions]

def solved(completions, solution):
    return [float(one == right) for one, right in zip(completions, solution)]

def math(completions, scale=1, **_):
    return [scale for _ in completions]

scaled = partial(math, scale=2)

def late(completions, trainer_state, **_):
    return [1.0]

def main():
    def inner(completions, **_):
        return [1.0]
    args = GRPOConfig(output_dir="out", max_steps=3, reward_weights=WEIGHTS)
    GRPOTrainer(model="org/model", reward_funcs=FUNCTIONS, args=args, train_dataset=load_dataset("org/data")).train()
"""


def translated(tmp_path: Path, functions: str, *overrides: str, weights: str = "None") -> Translation:
    (tmp_path / "beside.py").write_text("def imported(completions, **_):\n    return [1.0]\n")
    text = SCRIPT.replace("FUNCTIONS", functions).replace("WEIGHTS", weights)
    return translate_file("trl", tmp_path / "train.py", text, overrides=overrides)


def test_functions_of_the_file_become_verifiers_that_load(tmp_path: Path) -> None:
    config = parsed(translated(tmp_path, "[Correct, short, imported, scaled]", weights="[2.0, 0.5, 1.0, 1.0]"))
    names = ["correct", "short", "imported", "scaled"]
    assert config.data.sources[0].verifier == names
    assert config.data.sources[0].label_columns == {"answer": "answer", "limit": "limit"}
    assert config.reward.weights == dict(zip(names, [2.0, 0.5, 1.0, 1.0], strict=True))
    custom = config.reward.custom
    assert [custom[name].convention for name in names] == ["trl", "trl_text", "trl_text", "trl_text"]
    for name in names:
        assert load(read_code(name, custom[name])).parameters >= {"completion", "label"}


def test_data_of_an_override_are_judged_by_the_functions_too(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    config = parsed(translated(tmp_path, "Correct", f'data.sources=[{{path = "{path}"}}]'))
    (source,) = config.data.sources
    assert (source.verifier, source.label_columns) == ("correct", {"answer": "answer"})
    own = f'data.sources=[{{path = "{path}", verifier_column = "v", ground_truth_column = "g"}}]'
    (source,) = parsed(translated(tmp_path, "Correct", own)).data.sources
    assert (source.verifier, source.verifier_column, source.label_columns) == (None, "v", {})


def test_files_that_import_from_each_other_define_nothing(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("from beside import circular\n")
    script = SCRIPT.replace("FUNCTIONS", "circular").replace("WEIGHTS", "None")
    (tmp_path / "train.py").write_text(f"from other import circular\n{script}")
    (tmp_path / "beside.py").write_text("from other import circular\n")
    (refusal,) = translate_arguments("trl", [str(tmp_path / "train.py")]).blocking
    assert (refusal.name, refusal.value) == ("reward_funcs", "circular")


def test_a_verifier_of_shoal_keeps_its_name(tmp_path: Path) -> None:
    assert list(parsed(translated(tmp_path, "math")).reward.custom) == ["own_math"]


def test_functions_stand_beside_those_of_trl(tmp_path: Path) -> None:
    config = parsed(translated(tmp_path, "[accuracy_reward, think_format_reward, solved, math]"))
    (source,) = config.data.sources
    assert (source.verifier, source.ground_truth_column) == (["math", "solved", "own_math"], "solution")
    assert (source.label_columns, config.reward.format.kind) == ({}, "think")


@pytest.mark.parametrize(
    ("functions", "value", "why"),
    [
        ("[inner]", "inner, defined in the file", "inside another function"),
        ("[late]", "late, defined in the file", "trainer_state"),
        ("[lambda completions: [1.0]]", "lambda completions: [1.0]", "reward.custom.NAME.file"),
        ("[accuracy_reward, Correct]", "Correct", "columns other than solution"),
    ],
)
def test_a_function_without_a_counterpart_is_refused_alone(
    tmp_path: Path, functions: str, value: str, why: str
) -> None:
    translation = translated(tmp_path, functions)
    (refusal,) = translation.blocking
    assert (refusal.name, refusal.value) == ("reward_funcs", value)
    assert why in refusal.reason
    assert not [note for note in translation.notes if note.startswith("settings without a line") and "reward_f" in note]


def test_the_arguments_of_the_trainer_may_be_given_by_position(tmp_path: Path) -> None:
    named = 'model="org/model", reward_funcs=FUNCTIONS, args=args, train_dataset=load_dataset("org/data")'
    script = SCRIPT.replace(named, '"org/model", [Correct], args, load_dataset("org/data")').replace("WEIGHTS", "None")
    config = parsed(translate_file("trl", tmp_path / "train.py", script))
    assert (config.data.sources[0].dataset, config.run.num_steps) == ("org/data", 3)


def test_the_note_on_data_names_the_columns_that_are_read(tmp_path: Path) -> None:
    for functions, column, other in (("[Correct]", "answer", "solution"), ("[solved]", "solution", "answer")):
        translation = translated(tmp_path, functions)
        (note,) = [note for note in translation.notes if note.startswith("GRPOTrainer.train_dataset = org/data: ")]
        assert f"labels from {column}," in note and other not in note, note
        assert not [note for note in translation.notes if "without a line" in note and "train_dataset" in note]


def test_data_whose_rows_the_file_changes_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    text = SCRIPT.replace("FUNCTIONS", "Correct").replace("WEIGHTS", "None")
    path.write_text(text.replace('load_dataset("org/data")', 'load_dataset("org/data", "main").map(prepare)'))
    (refusal,) = translate_arguments("trl", [str(path)], skip=["all"]).blocking
    assert (refusal.name, refusal.value, refusal.is_needed) == ("train_dataset", "org/data, main", True)
    assert "map in line" in refusal.reason

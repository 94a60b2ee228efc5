"""Files that people start from work, and pages list what there is."""

import json
import re
from pathlib import Path

import pytest

from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.run.checks.preflight import preflight
from shoal.config import load_config, parse_config
from shoal.config.load import config_struct
from shoal.errors import InvalidArgument
from tests.support.repository import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_configuration_in_configs_loads_and_survives_the_wire(path: Path) -> None:
    config = load_config(path)
    assert parse_config(config_struct(config)) == config


def test_the_quickstart_has_its_held_out_questions() -> None:
    config = load_config(ROOT / "configs" / "quickstart.toml")
    inputs = preflight(config)
    asked = {prompt.text for prompt in inputs.prompts.prompts}
    assert len(inputs.evaluation_prompts) == config.evaluation.num_prompts == 200
    assert not [prompt.prompt_id for prompt in inputs.evaluation_prompts if prompt.text in asked]


def test_operations_lists_every_event_and_every_exit_code() -> None:
    text = (ROOT / "docs" / "operations.md").read_text()
    sources = [path.read_text() for path in (ROOT / "services" / "coordinator").rglob("*.py")]
    kinds = {kind for source in sources for kind in re.findall(r'events\.add\(\s*"(\w+)"', source)}
    assert kinds, "no event is added any more?"
    assert not sorted(kind for kind in kinds if f"| `{kind}` |" not in text)
    assert not [code for code in ExitCode if f"| {code.value} | {code.name} |" not in text]


def test_links_in_the_documentation_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text())]
    assert not [f"{page.relative_to(ROOT)}: {link}" for page, link in links if not (page.parent / link).exists()]


def test_every_metric_of_a_step_is_documented() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    files = [*(ROOT / "services" / "coordinator").rglob("*.py"), ROOT / "services" / "learner" / "metrics.py"]
    named = {
        name
        for path in files
        for name in re.findall(r'"((?:objective|loss|policy|val|optim|other|staleness|time)/\w+)"', path.read_text())
    }
    assert len(named) > 30, f"metrics are named elsewhere now? found only {sorted(named)}"
    assert not sorted(name for name in named if f"`{name}`" not in text)


def test_a_verifier_of_reward_correct_that_no_row_names_is_refused(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": "1 + 1?", "ground_truth": "2", "dataset": "gsm8k"}\n')
    values = load_config(ROOT / "configs" / "quickstart.toml").model_dump(exclude_unset=True)
    values["data"], values["reward"] = {"sources": [{"path": str(rows)}]}, {"correct": ["gsm8k", "math"]}
    values.pop("evaluation", None)
    with pytest.raises(InvalidArgument, match=r"reward\.correct: .*'math'; .*: gsm8k"):
        preflight(parse_config(values))
    values["reward"] = {"correct": ["gsm8k"]}
    assert len(preflight(parse_config(values)).prompts) == 1


def test_a_filter_by_what_is_correct_is_refused_where_nobody_says_it(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    values = load_config(ROOT / "configs" / "quickstart.toml").model_dump(exclude_unset=True)
    values["grpo"] |= {"filter_groups_by": "correct"}
    values["data"] = {"sources": [{"path": str(rows)}]}
    values.pop("evaluation", None)
    for verifiers, problem in (
        (["soft_overlong", "max_length"], "max_length, soft_overlong"),
        (["gsm8k", "max_length"], ""),
    ):
        rows.write_text(json.dumps({"messages": "1 + 1?", "ground_truth": ["2", "3"], "dataset": verifiers}) + "\n")
        if not problem:
            assert len(preflight(parse_config(values)).prompts) == 1
            continue
        with pytest.raises(InvalidArgument, match=f'grpo.filter_groups_by: "correct".*{problem}'):
            preflight(parse_config(values))


def test_data_that_need_a_judge_are_refused_where_none_is_configured(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"messages": [{"role": "user", "content": "Hi"}], "ground_truth": "a", "dataset": "General-Quality_ref"}\n'
    )
    values = load_config(ROOT / "configs" / "quickstart.toml").model_dump(exclude_unset=True)
    values["data"] = {"sources": [{"path": str(rows)}]}
    values.pop("evaluation", None)
    with pytest.raises(InvalidArgument, match=r"reward\.judge\.base_url: .*unset.*general-quality_ref"):
        preflight(parse_config(values))
    values["reward"] = {"judge": {"base_url": "http://127.0.0.1:8000/v1", "model": "judge"}}
    assert len(preflight(parse_config(values)).prompts) == 1


@pytest.mark.parametrize(("weights", "num_notes"), [({}, 0), ({"timeout_s": 60}, 0), ({"timeout_s": 0.5}, 1)])
def test_a_deadline_that_ends_publishes_of_the_model_is_noted(
    weights: dict[str, float], num_notes: int, tmp_path: Path
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"messages": "1 + 1?", "ground_truth": "2", "dataset": "gsm8k"}\n')
    values = load_config(ROOT / "configs" / "quickstart.toml").model_dump(exclude_unset=True)
    values["data"], values["weights"] = {"sources": [{"path": str(rows)}]}, weights
    values.pop("evaluation", None)
    notes = [note for note in preflight(parse_config(values)).notes if note.startswith("weights.timeout_s: 0.5 s")]
    assert len(notes) == num_notes, notes

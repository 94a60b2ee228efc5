"""The model card of a step."""

import json
from pathlib import Path

import pytest
import yaml

from services.coordinator.cli.export.card import model_card
from services.coordinator.store.run_record import RunRecord
from shoal.config import parse_config

SECRETS = ("/srv", "10.0.0.7", "KEY_OF_THE_JUDGE", "s3cret")


def config_values(tmp_path: Path) -> dict[str, object]:
    return {
        "model": {"path": "/srv/models/base-7b"},
        "data": {
            "sources": [
                {"path": "/srv/data/questions.jsonl", "system_prompt": "s3cret"},
                {"dataset": "someone/sums"},
                {"task": "arithmetic"},
            ],
        },
        "evaluation": {"sources": [{"task": "arithmetic", "task_seed": 1}]},
        "reward": {
            "judge": {"base_url": "http://10.0.0.7:8000/v1", "model": "judge", "api_key_env": "KEY_OF_THE_JUDGE"},
        },
        "learner": {"learning_rate": 3e-6, "freeze": ["model.embed_tokens", "lm_head"]},
        "sampling": {"stop_strings": ["/srv/secret", "END"]},
        "grpo": {"group_size": 16},
    }


def card(tmp_path: Path, num_steps: int, repo: str = "") -> str:
    record = RunRecord("sums", tmp_path, policy_version=num_steps, num_steps=num_steps)
    rows: list[dict[str, float]] = []
    for step in range(0, num_steps + 1, 10):
        rows.append(
            {
                "step": step, "eval/num_prompts": 200, "eval/verifiable_correct_rate": step / 100,
                "eval/verifiable_correct_rate_low": step / 100 - 0.05, "eval/pass_at_4": 0.9, "eval/maj_at_4": 0.6,
                "eval/verifiable_correct_rate_high": step / 100 + 0.05,
            }
        )  # fmt: skip
    rows += [{"step": step, "objective/scores": step / 1000} for step in range(1, num_steps + 1)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return model_card(record, parse_config(config_values(tmp_path)), 40, repo)


def test_a_card_says_what_was_trained_how_and_how_well(tmp_path: Path) -> None:
    text = card(tmp_path, 50, "me/sums")
    for words in (
        "# sums, step 40",
        "base-7b, trained with GRPO",
        "| Data | questions.jsonl, someone/sums, arithmetic |",
        "| Correct | 95% interval | maj@4 | pass@4 |",
        "| 40 | 200 | 40.0% | 35.0% to 45.0% | 60.0% | 90.0% |",
        "learning_rate = 3e-06",
        'freeze = ["model.embed_tokens", "lm_head"]',
        "# stop_strings: not shown",
        "group_size = 16",
        'from_pretrained("me/sums", revision="step-40")',
        "vllm serve me/sums --revision step-40\n",
        "VLLM_CPU_KVCACHE_SPACE=1 python -m vllm.entrypoints.openai.api_server --enforce-eager --model me/sums "
        "--revision step-40\n",
    ):
        assert words in text, text
    header = yaml.safe_load(text.split("---")[1])
    assert header["datasets"] == ["someone/sums"] and "base_model" not in header, header


def test_a_card_says_what_was_rewarded(tmp_path: Path) -> None:
    record = RunRecord("sums", tmp_path, policy_version=2, num_steps=2)
    verdicts = {"eval/scores": 0.4, "eval/verifier/gsm8k/reward": 0.3, "eval/verifier/brevity/reward": 0.5}
    rows = [
        {"step": 0, "eval/num_prompts": 9, "eval/scores_low": 0.2, "eval/scores_high": 0.6, **verdicts},
        {
            "step": 1,
            **{f"objective/{name}_{what}": 0.5 for name in ("gsm8k", "brevity") for what in ("reward", "correct_rate")},
        },
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = config_values(tmp_path)
    values["reward"] = {
        "correct": ["gsm8k"],
        "weights": {"brevity": 0.3},
        "cosine": {"factor": 0.5},
        "custom": {"brevity": {"file": "/srv/rewards/brevity.py", "arguments": {"key": "s3cret"}}},
        "judge": {"base_url": "http://10.0.0.7:8000/v1", "model": "judge", "api_key_env": "KEY_OF_THE_JUDGE"},
    }
    text = model_card(record, parse_config(values), 2)
    for words in (
        "| brevity | brevity.py: score | 0.3 | no |",
        "| gsm8k | Shoal | 1 | yes |",
        "| Step | Held-out questions | Correct | 95% interval | Reward | 95% interval | brevity | gsm8k |",
        "| 0 | 9 | - | - | 0.4 | 0.2 to 0.6 | 0.5 | 0.3 |",
        '[reward]\ncorrect = ["gsm8k"]\ncosine.factor = 0.5',
    ):
        assert words in text, text
    assert not [secret for secret in SECRETS if secret in text]


def test_the_card_of_an_adapter_says_how_to_load_it_onto_its_base(tmp_path: Path) -> None:
    card(tmp_path, 50)
    record = RunRecord("sums", tmp_path, policy_version=50, num_steps=50)
    config = parse_config(config_values(tmp_path) | {"model": {"path": "someone/base-7b"}})
    text = model_card(record, config, 40, "me/sums", is_adapter=True)
    assert yaml.safe_load(text.split("---")[1])["library_name"] == "peft"
    for words in ('from_pretrained("someone/base-7b")', 'from_pretrained(model, "me/sums", revision="step-40")'):
        assert words in text, text
    local = model_card(record, parse_config(config_values(tmp_path)), 40, is_adapter=True)
    assert 'from_pretrained("FOLDER OF base-7b")' in local, local
    assert "vllm serve" not in text and "AutoTokenizer" not in text


@pytest.mark.parametrize("is_adapter", [True, False])
def test_the_card_of_a_model_that_reads_images_names_the_class_that_loads_it(tmp_path: Path, is_adapter: bool) -> None:
    record = RunRecord("sums", tmp_path, policy_version=1, num_steps=1)
    config = parse_config(config_values(tmp_path))
    for reads_images, loader in ((True, "AutoModelForImageTextToText"), (False, "AutoModelForCausalLM")):
        text = model_card(record, config, 1, is_adapter=is_adapter, reads_images=reads_images)
        assert text.count("AutoModelFor") == text.count(loader) == 2, text


def test_the_card_of_a_model_with_code_of_its_own_says_that_it_has_to_be_trusted(tmp_path: Path) -> None:
    record = RunRecord("sums", tmp_path, policy_version=1, num_steps=1)
    values = config_values(tmp_path) | {"model": {"path": "/srv/models/own", "trust_remote_code": True}}
    text = model_card(record, parse_config(values), 1)
    assert text.count("trust_remote_code=True)") == 2 and text.count(" FOLDER --trust-remote-code\n") == 2, text


def test_a_card_ends_with_its_step_and_has_few_rows(tmp_path: Path) -> None:
    text = card(tmp_path, 50)
    assert "| 50 |" not in text, "a later step"
    curve = [line for line in text.partition("### Curves")[2].partition("##")[0].splitlines() if line[:3] == "| "]
    rows = [line for line in text.splitlines() if line.startswith(("| 1 | 0.001", "| 40 | 0.04 |"))]
    assert len(rows) == 2 and len(curve) <= 14, text


def test_a_card_has_no_folder_no_address_and_no_secret(tmp_path: Path) -> None:
    text = card(tmp_path, 50)
    assert not [secret for secret in (*SECRETS, str(tmp_path)) if secret in text], text

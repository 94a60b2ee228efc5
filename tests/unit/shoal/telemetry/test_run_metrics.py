import ast
import re
from collections import Counter

from shoal.config import RunConfig
from shoal.telemetry.run_metric_table import TABLE
from shoal.telemetry.run_metrics import missing, undocumented
from tests.support.configs import run_config
from tests.support.repository import ROOT

METRICS = [metric for section in TABLE for metric in section.metrics]
OPEN_INSTRUCT_METRICS = [
    "episode", "lr", "epoch", "objective/kl", "objective/scores", "objective/rlhf_reward",
    "objective/non_score_reward", "objective/entropy", "objective/loss", "objective/kl2", "objective/kl3",
    "objective/scores_mean", "objective/reward_std", "objective/verifiable_correct_rate", "loss/policy_avg",
    "policy/approxkl_avg", "policy/clipfrac_avg", "policy/entropy_avg", "time/from_scratch", "time/training",
    "val/sequence_lengths", "val/num_stop_token_ids", "val/ratio", "val/ratio_var", "val/stop_token_rate",
    "val/format_scores", "other/real_batch_size_ratio", "other/packed_ratio",
]  # fmt: skip
"""The training metrics that open-instruct's documentation of grpo_fast.py names."""


def config(**kl: object) -> RunConfig:
    return run_config(kl=kl)


def test_every_metric_that_open_instruct_documents_has_its_name_here() -> None:
    assert not undocumented(OPEN_INSTRUCT_METRICS, TABLE)
    assert {metric.name for metric in METRICS} >= set(OPEN_INSTRUCT_METRICS)


def test_each_name_is_explained_once() -> None:
    twice = [name for name, count in Counter(metric.name for metric in METRICS).items() if count > 1]
    assert not twice, twice
    assert all(metric.meaning for metric in METRICS)


def test_a_name_from_the_run_matches_a_placeholder_of_the_table() -> None:
    known = ["objective/gsm8k_reward", "eval/source/openai/gsm8k/test/scores", "eval/pass_at_16", "dropped/no_signal"]
    assert undocumented([*known, "objective/gsm8k", "eval/pass_at_", "lr2"], TABLE) == sorted(
        ["eval/pass_at_", "lr2", "objective/gsm8k"]
    )


def test_the_required_metrics_depend_on_the_configuration() -> None:
    def absent(**kl: object) -> set[str]:
        return {name for name in missing([], config(**kl), TABLE) if "kl" in name and not name.startswith("policy/")}

    assert absent() == set()
    of_loss = {"objective/kl", "objective/kl2", "objective/kl3", "objective/kl_coef", "loss/kl_avg"}
    assert of_loss <= absent(coef=0.1) and of_loss <= absent(reference="always")
    in_reward = absent(coef=0.1, place="reward")
    assert {"objective/kl", "objective/reward_kl"} <= in_reward and "loss/kl_avg" not in in_reward


def test_every_metric_that_the_code_names_is_in_the_table() -> None:
    """Finds whole names in all strings of the services, but not in f-strings."""
    prefixes = {metric.name.partition("/")[0] for metric in METRICS if "/" in metric.name}
    name = re.compile(rf"(?:{'|'.join(sorted(prefixes))})/[a-z0-9_]*[a-z0-9]")
    services = ROOT / "services"
    named = {
        node.value
        for path in services.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and name.fullmatch(node.value)
    }
    assert len(named) > 80, f"found {len(named)}: names are no longer where this test looks"
    assert undocumented(named, TABLE) == [], "add to shoal/telemetry/run_metric_table.py or learner_metric_table.py"

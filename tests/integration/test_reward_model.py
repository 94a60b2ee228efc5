"""Reward models by transformers and torch: their scores are transformers' own, however they are batched."""

import asyncio
import importlib.util
import json
import os
import shutil
import signal
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.coordinator.cli import main
from services.reward.model.model_process import ModelProcess
from services.reward.model.question import Answer, Question, value_of
from services.reward.model.runner import Runner, padded, padding_id, plan_batches
from services.reward.service import RewardService
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.conversation import ChatMessage
from shoal.errors import InvalidArgument
from shoal.rollout import GroundTruth, Prompt
from shoal.rpc.channel import connect
from shoal.scores import Score, ScoreOutcome
from shoal.v1 import reward_pb2, worker_pb2
from shoal.v1.reward_pb2_grpc import RewardServiceStub
from shoal.wire import prompt_to_wire
from tests.support.loopback import REWARD, serving
from tests.support.reward_client import ALLOWED, RewardClient, completion_request
from tests.support.tiny_model import make_tiny_model, make_tiny_reward_model

pytestmark = pytest.mark.integration

LABELS = ("bad", "middling", "good")
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reward models: with one label, without a padding token, with three labels."""
    root = tmp_path_factory.mktemp("models")
    return {
        "one": make_tiny_reward_model(root / "one"),
        "no_pad": make_tiny_reward_model(root / "no_pad", pad=False),
        "three": make_tiny_reward_model(root / "three", labels=LABELS),
    }


def question(number: int) -> Question:
    return {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": f"What is {number} times {number}?"},
            {"role": "assistant", "content": "so " * (number * 5 % 23) + f"it is {number * number}"},
        ]
    }


QUESTIONS = [question(number) for number in range(12)]


@cache
def loaded(folder: Path) -> tuple[Any, Any]:
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    return AutoModelForSequenceClassification.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def direct(folder: Path, asked: Question, *, keep: slice = slice(None)) -> list[float]:
    """Logits by transformers alone, one conversation at a time, without padding."""
    import torch

    model, tokenizer = loaded(folder)
    text = tokenizer.apply_chat_template(asked["messages"], tokenize=False)
    token_ids = tokenizer(text, add_special_tokens=False)["input_ids"][keep]
    with torch.inference_mode():
        logits: list[float] = model(input_ids=torch.tensor([token_ids])).logits[0].tolist()
    return logits


def answers(runner: Runner, questions: Sequence[Question]) -> list[dict[str, Any]]:
    told = [answer for answered in runner.answers(questions) for answer in answered]
    return sorted(told, key=lambda answer: answer["index"])


def gap(one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> float:
    return float(np.abs(np.array(one) - np.array(other)).max())


# Scores.


@pytest.mark.parametrize("which", ["one", "no_pad", "three"])
def test_scores_are_those_of_transformers_however_they_are_batched(folders: dict[str, Path], which: str) -> None:
    config = RewardModelConfig(path=str(folders[which]), label="good" if which == "three" else None)
    runner = Runner(config)
    theirs = [direct(folders[which], one) for one in QUESTIONS]
    assert np.ptp(np.array(theirs)[:, 0]) > 0.1, "all inputs score alike, so nothing was shown"
    for batch_size, batch_tokens in [(1, 16384), (5, 16384), (16, 16384), (16, 300)]:
        runner._config = config.model_copy(update={"batch_size": batch_size, "batch_tokens": batch_tokens})
        told = answers(runner, QUESTIONS)
        assert [one["outcome"] for one in told] == [ScoreOutcome.SCORED] * len(QUESTIONS)
        mine = [one["logits"] for one in told]
        worst = gap(mine, theirs)
        assert worst < TOLERANCE, (
            f"{which}, {batch_size} at once: {worst:.2e} apart; {mine[:2]} here, {theirs[:2]} by transformers"
        )


def test_one_of_several_labels_pays_by_number_and_by_name(folders: dict[str, Path]) -> None:
    for label in ("good", 2):
        runner = Runner(RewardModelConfig(path=str(folders["three"]), label=label))
        assert runner.label == 2
    logits = direct(folders["three"], QUESTIONS[3])
    told = answers(runner, QUESTIONS[3:4])[0]
    answer = Answer(tuple(told["logits"]), told["num_tokens"])
    share = np.exp(logits[2]) / np.exp(logits).sum()
    values = {kind: value_of(answer, runner.label, kind) for kind in ("logit", "sigmoid", "softmax")}  # type: ignore[arg-type]
    expected = {"logit": logits[2], "sigmoid": 1 / (1 + np.exp(-logits[2])), "softmax": share}
    assert values == pytest.approx(expected, abs=TOLERANCE), (values, expected)


def test_an_input_that_is_too_long_is_unscorable_or_cut_where_that_is_asked_for(folders: dict[str, Path]) -> None:
    path, most = str(folders["one"]), 60
    long, short = QUESTIONS[9], {"messages": QUESTIONS[0]["messages"][2:]}
    told = answers(Runner(RewardModelConfig(path=path, max_length_tokens=most)), [long, short])
    assert [one["outcome"] for one in told] == [ScoreOutcome.UNSCORABLE, ScoreOutcome.SCORED], told
    assert f" at most {most}" in told[0]["detail"], told
    for too_long, keep in (("cut_start", slice(-most, None)), ("cut_end", slice(most))):
        runner = Runner(RewardModelConfig(path=path, max_length_tokens=most, too_long=too_long))
        told = answers(runner, [long])
        assert (told[0]["outcome"], told[0]["num_tokens"]) == (ScoreOutcome.SCORED, most), told
        worst = gap([told[0]["logits"]], [direct(folders["one"], long, keep=keep)])
        assert worst < TOLERANCE, f"{too_long}: {worst:.2e} apart"


def test_messages_that_the_template_refuses_are_unscorable_and_no_others(folders: dict[str, Path]) -> None:
    template = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    runner = Runner(RewardModelConfig(path=str(folders["one"]), chat_template=template))
    plain: Question = {"messages": QUESTIONS[1]["messages"][1:]}
    told = answers(runner, [QUESTIONS[0], plain, {"text": "a text"}, {"text": ""}])
    outcomes = [str(one["outcome"]) for one in told]
    assert outcomes == ["unscorable", "scored", "scored", "unscorable"], told
    assert "no system role" in told[0]["detail"], told


def test_a_model_that_breaks_fails_its_batch_alone(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    runner = Runner(RewardModelConfig(path=str(folders["one"]), batch_size=6))
    forward, calls = runner._model.forward, []

    def breaks_once(*args: Any, **inputs: Any) -> Any:
        calls.append(len(inputs["input_ids"]))
        if len(calls) == 1:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\nmore")
        return forward(*args, **inputs)

    monkeypatch.setattr(runner._model, "forward", breaks_once)
    told = answers(runner, QUESTIONS)
    failed = [one for one in told if one["outcome"] == ScoreOutcome.FAILED]
    assert (calls, len(failed)) == ([6, 6], 6), told
    assert failed[0]["detail"].endswith("lower reward.model.batch_tokens") and "more" not in failed[0]["detail"]


def test_encoders_get_their_special_tokens_or_are_refused(tmp_path: Path) -> None:
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    words = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "why", "because", "so", "it", "is"]
    backend = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = Whitespace()
    backend.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]",
        model_max_length=64,
    )  # fmt: skip
    tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(0)
    BertForSequenceClassification(
        BertConfig(
            vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
            max_position_embeddings=64, initializer_range=0.2, num_labels=1, pad_token_id=0,
        )
    ).save_pretrained(tmp_path)  # fmt: skip
    path = str(tmp_path)
    with pytest.raises(InvalidArgument, match='"simple"'):
        Runner(RewardModelConfig(path=path))
    with pytest.raises(InvalidArgument, match=r"reward.model.add_special_tokens is false.*\[CLS\]"):
        Runner(RewardModelConfig(path=path, chat_template="simple"))
    texts = ["why because", "why so it is", "why so so so it is because"]
    asked: list[Question] = [
        {"messages": [{"role": "user", "content": text.split()[0]}, {"role": "assistant", "content": text[4:]}]}
        for text in texts
    ]
    told = answers(Runner(RewardModelConfig(path=path, chat_template="simple", add_special_tokens=True)), asked)
    model, fast = loaded(tmp_path)
    with torch.inference_mode():
        theirs = [model(**fast(text, return_tensors="pt")).logits[0].tolist() for text in texts]
    worst = gap([one["logits"] for one in told], theirs)
    assert worst < TOLERANCE, f"{worst:.2e} apart: {told}, {theirs}"
    assert np.ptp(theirs) > 1e-3, theirs


# What is refused.


def changed(folder: Path, to: Path, **values: Any) -> str:
    """A copy of a model with other values in its configuration; None takes one out."""
    shutil.copytree(folder, to)
    path = to / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return str(to)


def test_what_cannot_score_is_refused_with_field_value_and_cure(folders: dict[str, Path], tmp_path: Path) -> None:
    causal = make_tiny_model(tmp_path / "causal")
    one, three = str(folders["one"]), str(folders["three"])
    headless = changed(causal, tmp_path / "headless", architectures=["LlamaForSequenceClassification"])
    mute = changed(folders["one"], tmp_path / "mute")
    (tmp_path / "mute" / "chat_template.jinja").unlink()
    endless = changed(folders["one"], tmp_path / "endless", max_position_embeddings=None)
    for settings, message in [
        ({"path": str(tmp_path / "nowhere")}, r"reward.model.path: the folder .*nowhere"),
        ({"path": str(causal)}, r"reward.model.path: .* is LlamaForCausalLM, .* ends in ForSequenceClassification"),
        ({"path": headless, "label": 0}, r"reward.model.path: the weights in .* lack 1 of .* score.weight"),
        ({"path": mute}, r"reward.model.chat_template is unset, .* has no chat template"),
        ({"path": one, "chat_template": "{{ nothing.at.all }}"}, r"reward.model.chat_template: .* template refuses"),
        ({"path": one, "max_length_tokens": 4096}, "reward.model.max_length_tokens: 4096 exceeds the 2048"),
        ({"path": three}, r"reward.model.label is unset, and the model has 3 labels: bad, middling, good"),
        ({"path": three, "label": "best"}, r"reward.model.label: the model has no label 'best'; it has 3 labels: bad"),
        ({"path": three, "label": 3}, "reward.model.label: 3 is beyond .* give 0 to 2"),
        ({"path": one, "value": "softmax"}, "reward.model.value: softmax over a single label"),
        ({"path": one, "device": "cuda:7"}, "reward.model.device: cuda:7, but torch sees"),
        ({"path": one, "add_special_tokens": True, "chat_template": "{{ bos_token }}{{ messages[0].content }}"}, None),
    ]:
        if message is None:
            Runner(RewardModelConfig(**settings))  # This tokenizer adds no beginning of its own, so none stands twice.
            continue
        with pytest.raises(InvalidArgument, match=message):
            Runner(RewardModelConfig(**settings))
    tokenizer = Path(endless) / "tokenizer_config.json"
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"model_max_length": 10**30}))
    with pytest.raises(InvalidArgument, match=r"reward.model.max_length_tokens is unset"):
        Runner(RewardModelConfig(path=endless))


def test_a_machine_without_torch_is_told_which_extra_brings_it(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    with pytest.raises(InvalidArgument, match=r"reward-model.*reward.model.base_url"):
        Runner(RewardModelConfig(path=str(folders["one"])))


# Batches.


def test_batches_hold_what_is_of_a_length_and_no_more_than_may() -> None:
    lengths = {0: 50, 1: 10, 2: 400, 3: 12, 4: 45, 5: 11}
    assert plan_batches(lengths, 3, 150) == [[1, 5, 3], [4, 0], [2]]
    assert plan_batches({}, 3, 150) == []


def test_padding_comes_last_and_is_no_token_of_the_inputs() -> None:
    items = [{"input_ids": [0, 1, 5], "attention_mask": [1, 1, 1]}, {"input_ids": [2], "attention_mask": [1]}]
    pad = padding_id(items)
    assert pad == 3
    assert padded(items, pad) == {"input_ids": [[0, 1, 5], [2, 3, 3]], "attention_mask": [[1, 1, 1], [1, 0, 0]]}


# Processes.


async def test_the_service_scores_by_a_model_beside_it_and_outlives_it(folders: dict[str, Path]) -> None:
    settings = {"path": str(folders["one"]), "num_threads": 1, "batch_size": 4}
    service = RewardService(ALLOWED)
    try:
        async with serving(service, REWARD) as address, connect(address, REWARD) as channel:
            client = RewardClient(RewardServiceStub(channel))
            status = await configured(client, settings)
            assert status.state == worker_pb2.WORKER_STATE_READY, status
            model = service._router._scorer("reward_model")._model  # type: ignore[union-attr]
            assert isinstance(model, ModelProcess)
            scores = await scored(client, QUESTIONS[:6])
            theirs = [direct(folders["one"], one)[0] for one in QUESTIONS[:6]]
            worst = gap([[score.verifier_scores[0].value for score in scores]], [theirs])
            assert worst < TOLERANCE, f"{worst:.2e} apart"
            assert [score.reward for score in scores] == pytest.approx([0.5 * one for one in theirs], abs=TOLERANCE)
            os.kill(model.pid, signal.SIGKILL)
            again = await scored(client, QUESTIONS[:6])
            assert [score.outcome for score in again] == [ScoreOutcome.SCORED] * 6, again
            assert gap([[score.reward for score in again]], [[score.reward for score in scores]]) < TOLERANCE
            assert model.num_restarts == 1
            status = await configured(client, {"path": str(folders["three"])})
            assert status.state == worker_pb2.WORKER_STATE_FAILED, status
            assert status.message.startswith("reward.model.label is unset"), status.message
    finally:
        await service.close()


async def configured(client: RewardClient, model: dict[str, Any]) -> worker_pb2.WorkerStatus:
    """The status once nothing loads any more; until then the service says that it does, and answers."""
    status = await client.configure(num_processes=1, weights={"reward_model": 0.5}, model=model)
    assert status.state == worker_pb2.WORKER_STATE_LOADING, status
    await client.until(lambda status: status.status.state != worker_pb2.WORKER_STATE_LOADING)
    return (await client.status()).status


async def scored(client: RewardClient, questions: Sequence[Question]) -> list[Score]:
    """Each question's last message as a completion of the messages before it, a group of one each."""

    async def one(asked: Question) -> Score:
        *before, last = (ChatMessage(**turn) for turn in asked["messages"])
        prompt = Prompt("p:0", np.zeros(0, np.int32), "t", (GroundTruth("reward_model", "", 0.5),), tuple(before))
        request = reward_pb2.ScoreGroupRequest(prompt=prompt_to_wire(prompt))
        [score] = await client.send([request, completion_request(0, last.content)])
        return score

    return list(await asyncio.gather(*map(one, questions)))


def test_a_file_is_scored_and_the_configuration_checked_before_a_run(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def shoal(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["shoal", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        said = capfd.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    *asked, answer = QUESTIONS[4]["messages"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"prompt": asked, "completion": answer["content"], "verifier": "reward_model"}) + "\n")
    code, out, error = shoal(
        "reward", "score", str(rows), "--set", f"reward.model.path={folders['one']}", "-o", "json",
    )  # fmt: skip
    assert code == 0, error
    reward, expected = json.loads(out)["rows"][0]["reward"], direct(folders["one"], QUESTIONS[4])[0]
    assert abs(reward - expected) < TOLERANCE, f"{reward} offline, {expected} by transformers"

    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"messages": asked}) + "\n")
    config = tmp_path / "run.toml"
    config.write_text(
        f'[model]\npath = "{make_tiny_model(tmp_path / "policy")}"\n[grpo]\ngroup_size = 2\ngroups_per_step = 1\n'
        f'[data]\nmax_prompt_tokens = 512\n[[data.sources]]\npath = "{prompts}"\nverifier = "reward_model"\n'
        "[sampling]\nmax_completion_tokens = 64\n"
    )
    check = ("config", "check", "--deep", str(config))
    code, _, error = shoal(*check)
    assert code == 2 and "reward.model.path: " in error and "'reward_model'" in error, error
    code, out, error = shoal(*check, "--set", f"reward.model.path={folders['one']}")
    assert code == 0 and f"{folders['one']}" in out, error
    code, _, error = shoal(*check, "--set", f"reward.model.path={folders['three']}")
    assert code == 2 and "reward.model.label is unset" in error, error

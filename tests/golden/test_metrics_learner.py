"""Metrics of the learner (metrics.json): learning rates, log-probabilities, entropies, a reference that follows."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from services.learner.engine.reference import follow
from services.learner.model.logprobs import TokenScorer
from services.learner.model.packing import pack_for_rank, sequence_row
from services.learner.model.policy import Policy
from shoal.config import RunConfig
from shoal.grpo.schedule import learning_rate
from shoal.rollout import Completion, FinishReason, Rollout, TrainGroup, VersionSpan, WeightVersion
from tests.golden import GoldenCase, golden_cases
from tests.support.configs import run_config

POLYNOMIAL_END = 1e-7
"""The default final learning rate of a polynomial schedule in transformers."""


def run_of(settings: Any) -> RunConfig:
    """Makes the configuration of a run with the schedule of a vector from transformers."""
    schedule, peak = settings["schedule"], settings["peak_learning_rate"]
    num_warmup, num_decay = settings.get("num_warmup_steps") or 0, settings.get("num_decay_steps")
    num_total = settings.get("num_training_steps")
    if settings.get("num_stable_steps") is not None:
        num_total = num_warmup + settings["num_stable_steps"] + num_decay
    # Our field is a ratio, theirs a rate.
    end = settings.get("lr_end", POLYNOMIAL_END if schedule == "polynomial" else settings.get("min_lr"))
    floor = settings.get("min_lr_rate", settings.get("min_lr_ratio"))
    learner = {
        "learning_rate": peak,
        "lr_scheduler": schedule,
        # transformers' "constant" ignores a warm-up; ours refuses one.
        "warmup_steps": 0 if schedule == "constant" else num_warmup,
        "lr_num_cycles": settings.get("num_cycles"),
        "lr_min_ratio": floor if end is None else end / peak,
        "lr_power": settings.get("power", 1.0),
        "lr_timescale": settings.get("timescale"),
        "lr_decay_steps": num_decay,
        "lr_warmup_shape": settings.get("warmup_type", "linear"),
        "lr_decay_shape": settings.get("decay_type", "cosine"),
    }
    return run_config(learner=learner, run={"num_steps": num_total} if num_total else {})


@golden_cases("metrics", only=("lr_schedule_",))
def test_the_rate_of_each_optimizer_step_is_that_of_transformers(case: GoldenCase) -> None:
    run = run_of(case.config)
    case.check("learning_rates", [learning_rate(run, step) for step in case.inputs["steps"]])


def score(case: GoldenCase) -> tuple[Tensor, Tensor, Tensor]:
    """Returns log-probabilities and entropies by our output layer, which is the identity here, and its input."""
    logits = torch.tensor(case.inputs["logits"], dtype=torch.float32, requires_grad=True)
    labels = torch.tensor(case.inputs.get("labels", [0] * len(logits)))
    scorer = TokenScorer(identity_head(logits.shape[1]), chunk_tokens=1024)
    logprobs, entropies = scorer(logits, labels, case.config["temperature"])
    return logprobs, entropies, logits


def identity_head(vocabulary: int) -> nn.Linear:
    head = nn.Linear(vocabulary, vocabulary, bias=False)
    nn.init.eye_(head.weight)
    return head


@golden_cases("metrics", only=("token_logprobs",), but=("token_logprobs_shifted",))
def test_the_log_probability_of_each_token_and_its_gradient(case: GoldenCase) -> None:
    logprobs, _, logits = score(case)
    case.check("logprobs", logprobs.detach())
    logprobs.sum().backward()
    assert logits.grad is not None
    case.check("grad_logits_of_sum", logits.grad)


@golden_cases("metrics", only=("entropy",))
def test_the_entropy_of_each_token(case: GoldenCase) -> None:
    _, entropies, _ = score(case)
    case.check("entropy", entropies.detach())


class Recorded(nn.Module):
    """A language model with fixed logits for one sequence."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.config = PreTrainedConfig()
        self.embeddings = nn.Embedding(1, 1)
        self.head = identity_head(logits.shape[1])
        self.logits = logits

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def base_model(self, **_: Any) -> Any:
        return SimpleNamespace(last_hidden_state=self.logits[None])


@golden_cases("metrics", only=("token_logprobs_shifted",))
def test_the_logits_at_a_token_score_the_next_one(case: GoldenCase) -> None:
    tokens = np.array(case.inputs["token_ids"], dtype=np.int32)
    num_prompt = case.config["prompt_length"]
    policy = Policy(
        Recorded(torch.tensor(case.inputs["logits"])), compute_dtype=torch.float32, logits_chunk_tokens=1024
    )
    case.check("logprobs", policy(sequence_row([tokens]), case.config["temperature"])[0].detach())

    completion = Completion(
        sample_index=0,
        token_ids=tokens[num_prompt:],
        behavior_logprobs=np.zeros(len(tokens) - num_prompt, dtype=np.float32),
        finish_reason=FinishReason.STOP,
        version_spans=(VersionSpan(WeightVersion(0, 0), 0, len(tokens) - num_prompt),),
        seed=0,
    )
    group = TrainGroup("g", tokens[:num_prompt], (Rollout(completion, advantage=1.0),))
    (row,), _ = pack_for_rank([group], max_tokens=1024, rank=0, num_ranks=1)
    case.check("completion_logprobs", policy(row, case.config["temperature"])[0].detach())


@golden_cases("metrics", only=("reference_polyak",))
def test_the_reference_follows_the_policy_by_its_share(case: GoldenCase) -> None:
    reference = torch.tensor(case.inputs["reference"])
    seen = []
    for policy in case.inputs["policy_at_each_update"]:
        follow(reference, torch.tensor(policy), case.config["alpha"])
        seen.append(reference.tolist())
    case.check("reference_after_each_update", seen)

"""The train step, on one rank. This file is the learner's table of contents."""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.learner.batch import (
    PackedRow,
    check_batch,
    check_tokens,
    cut_mini_batches,
    num_loss_tokens,
    pack_for_rank,
    sequence_row,
)
from services.learner.deepspeed_engine import DeepSpeedEngine
from services.learner.loss import grpo_loss
from services.learner.metrics import StepRecord, TokenSums, step_metrics
from services.learner.ranks import Ranks
from services.learner.reference import ReferenceModel
from services.learner.schedule import learning_rate
from shoal.config import RunConfig
from shoal.errors import FailedPrecondition
from shoal.models import ModelDescription
from shoal.rollout import Float32Array, TrainBatch, TrainGroup, WeightVersion
from shoal.wire import invalid


@dataclass(frozen=True)
class StepResult:
    """What became of a train step."""

    applied: bool
    """Whether any mini-batch was."""
    skip_reason: str
    """Why none was; empty when applied."""
    version: WeightVersion
    num_optimizer_steps: int
    metrics: dict[str, float]


class Learner:
    """The policy and how it learns. The same on every rank; each computes its share of every batch."""

    def __init__(
        self,
        config: RunConfig,
        ranks: Ranks,
        engine: DeepSpeedEngine,
        reference: ReferenceModel | None,
        *,
        lm: Any,
        model: ModelDescription,
    ) -> None:
        """`lm` is the transformers model that the engine trains, `model` what its files say."""
        self.config = config
        self.ranks = ranks
        self.engine = engine
        self.reference = reference
        self.lm = lm
        self.model = model
        self.version = WeightVersion(attempt=0, policy_version=0)
        self.num_optimizer_steps = 0

    def step(self, batch: TrainBatch) -> StepResult:
        """Takes one train step: `num_epochs` x `num_mini_batches` optimizer steps on the clipped surrogate.

        The loss is the mean over every completion token of the *global* mini-batch (DAPO, arXiv:2503.14476), so that
        neither packing nor the number of ranks changes the gradient. The baseline is the policy that sampled, by the
        engine's log-probabilities. An optimizer step whose loss or gradient is not finite, on any rank, is applied on
        none. Raises `InvalidArgument`, on every rank alike, for a batch that the model must not meet.
        """
        started = time.monotonic()
        check_batch(batch, vocab_size=self.model.vocab_size, max_positions=self.model.max_context_tokens)
        grpo = self.config.grpo
        record = StepRecord()
        refusals = []
        for epoch in range(grpo.num_epochs):
            for groups in cut_mini_batches(batch.groups, grpo.num_mini_batches):
                sums, num_rows = self.accumulate_gradient(groups, batch.temperature)
                record.num_rows += num_rows if epoch == 0 else 0
                record.first = record.first or sums
                rate = learning_rate(self.config, self.num_optimizer_steps)
                outcome = self.engine.step(rate, refuse=not math.isfinite(sums.total("loss")))
                if outcome.applied:
                    self.num_optimizer_steps += 1
                    record.learning_rate = rate
                    record.grad_norms.append(outcome.grad_norm)
                    record.applied.merge(sums)
                else:
                    record.num_refused += 1
                    refusals.append(f"loss {sums.mean('loss'):.4g}, gradient norm {outcome.grad_norm:.4g}")
        applied = bool(record.grad_norms)
        if applied:
            self.version = WeightVersion(self.version.attempt, self.version.policy_version + 1)
            self._update_reference()
        metrics = step_metrics(
            record,
            batch.groups,
            num_epochs=grpo.num_epochs,
            kl_coef=grpo.kl_coef,
            duration_s=time.monotonic() - started,
        )
        skip_reason = "" if applied else f"not finite: {'; '.join(refusals)}"
        return StepResult(applied, skip_reason, self.version, self.num_optimizer_steps, metrics)

    def accumulate_gradient(self, groups: tuple[TrainGroup, ...], temperature: float) -> tuple[TokenSums, int]:
        """Runs a mini-batch forward and backward; returns its sums over all ranks, and its number of rows.

        Afterwards the engine holds the gradient of the global mean, waiting for its `step`.
        """
        grpo, ranks = self.config.grpo, self.ranks
        # Every rank knows the whole batch: counting its tokens needs no collective.
        num_tokens = sum(num_loss_tokens(group) for group in groups)
        rows, num_rows = pack_for_rank(
            groups, max_tokens=self.config.learner.pack_tokens, rank=ranks.data_rank, num_ranks=ranks.data_size
        )
        sums = TokenSums()
        for number, row_on_cpu in enumerate(rows, start=1):
            row = row_on_cpu.to(ranks.device)
            reference_C = None if self.reference is None else self.reference.logprobs(row, temperature)
            logprobs_C, entropy_C = self.engine.forward(row, temperature)
            losses = grpo_loss(
                logprobs_C,
                row.behavior_logprobs_C,
                row.advantages_C,
                clip_low=grpo.clip_low,
                clip_high=grpo.clip_high,
                reference_logprobs_C=reference_C,
                kl_coef=grpo.kl_coef,
            )
            loss = (losses.loss_C * row.weights_C).sum() / num_tokens
            # The engine averages over the ranks; times their number it is the sum again.
            self.engine.backward(loss * ranks.size, is_last=number == len(rows))
            sums.add(row, losses, logprobs_C, entropy_C)
        return sums.over(ranks), num_rows

    def _update_reference(self) -> None:
        """Every `kl.reference_update_steps` train steps that were applied."""
        kl = self.config.kl
        if (
            self.reference is not None
            and kl.reference_update_steps is not None
            and self.version.policy_version % kl.reference_update_steps == 0
        ):
            self.reference.follow(self.engine.full_parameters(torch.float32), kl.reference_alpha)

    def check_sequence(self, sequence: npt.NDArray[np.int32], field: str) -> None:
        """Raises `InvalidArgument` that names `field` for a sequence that the model cannot score."""
        if len(sequence) < 2:
            raise invalid(field, f"at least two tokens are needed: the first is given (found: {len(sequence)})")
        check_tokens(sequence, self.model.vocab_size, field, "the sequence")
        limit = self.model.max_context_tokens
        if limit is not None and len(sequence) > limit:
            raise invalid(field, f"{len(sequence)} tokens; the model takes {limit}")

    def logprobs(
        self, sequences: list[npt.NDArray[np.int32]], temperature: float, *, is_reference: bool = False
    ) -> list[Float32Array]:
        """Of each sequence the log-probability of every token but the first, under the current weights.

        Those of the policy, or of the reference. Called on all ranks; each computes all of it, since with sharded
        parameters they need each other anyway. Raises `FailedPrecondition` when the run has no reference.
        """
        model = self.require_reference().logprobs if is_reference else self._policy_logprobs
        scored: list[Float32Array] = []
        for chunk in _chunks(sequences, self.config.learner.pack_tokens):
            logprobs_C = model(sequence_row(chunk).to(self.ranks.device), temperature)
            scored += _split(logprobs_C, [len(sequence) - 1 for sequence in chunk])
        return scored

    def require_reference(self) -> ReferenceModel:
        """Raises `FailedPrecondition` when the run has no reference."""
        if self.reference is None:
            raise FailedPrecondition(
                "this run has no reference policy: set kl.coef above 0, or kl.reference to always",
                reason="NO_REFERENCE",
            )
        return self.reference

    def _policy_logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        with torch.no_grad():
            logprobs_C, _ = self.engine.forward(row, temperature)
        return logprobs_C


def _chunks(sequences: list[npt.NDArray[np.int32]], max_tokens: int) -> list[list[npt.NDArray[np.int32]]]:
    chunks: list[list[npt.NDArray[np.int32]]] = []
    room = 0
    for sequence in sequences:
        if not chunks or len(sequence) > room:
            chunks.append([])
            room = max_tokens
        chunks[-1].append(sequence)
        room -= len(sequence)
    return chunks


def _split(values: Tensor, lengths: list[int]) -> list[Float32Array]:
    return [part.numpy() for part in values.float().cpu().split(lengths)]

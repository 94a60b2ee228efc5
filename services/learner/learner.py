"""The train step on one rank. Read this file first: it shows which modules do which part of the step."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from services.learner.engine.deepspeed_engine import DeepSpeedEngine
from services.learner.engine.reference import Reference, ReferenceModel
from services.learner.gap import GapSums
from services.learner.loss.loss_tokens import LossTokens
from services.learner.loss.mini_batch import MiniBatch, Survey, needs_survey, plan_mini_batches
from services.learner.loss.policy_loss import pick_tokens, row_loss
from services.learner.metrics import StepRecord, TokenSums, rate_metrics, step_metrics
from services.learner.model.batch_checks import check_batch, check_rewards, check_supports, check_tokens
from services.learner.model.flops import ModelFlops, Work, peak_of
from services.learner.model.packing import (
    PackedRow,
    PackedRows,
    cut_mini_batches,
    cut_sequences,
    idle_row,
    pack_for_rank,
    rollouts_of_ranks,
    sequence_row,
)
from services.learner.ranks.process_group import ProcessGroup
from shoal.arrays import Float32Array
from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.grpo.kl import adapted_coef
from shoal.grpo.schedule import learning_rate
from shoal.grpo.seeds import dropout_seed
from shoal.models.compute_dtype import export_dtype
from shoal.models.model_folder import ModelDescription
from shoal.rollout import Support, TrainBatch, TrainGroup, WeightVersion
from shoal.wire import invalid


@dataclass(frozen=True)
class StepResult:
    """The outcome of a train step."""

    applied: bool
    """Whether any mini-batch was applied."""
    skip_reason: str
    """The reason why no mini-batch was applied; empty when `applied`."""
    version: WeightVersion
    num_optimizer_steps: int
    metrics: dict[str, float]


@dataclass(frozen=True)
class Gradient:
    """The results of a mini-batch's forward and backward passes, over all ranks."""

    sums: TokenSums
    gap: GapSums | None
    """The gap to the engine, if it was to be measured."""
    num_rows: int
    work: Work
    """The work of this rank's rows."""


class Learner:
    """The policy and its training. Every rank has the same learner and computes its share of every batch."""

    def __init__(
        self,
        config: RunConfig,
        process_group: ProcessGroup,
        engine: DeepSpeedEngine,
        reference: Reference | None,
        *,
        lm: Any,
        model: ModelDescription,
        pack_tokens: int,
    ) -> None:
        """`lm` is the transformers model that the engine trains; `model` is the description in the model's files.

        `pack_tokens` is the maximum number of tokens in a packed row.
        """
        self.config = config
        self.process_group = process_group
        self.engine = engine
        self.reference = reference
        self.lm = lm
        self.model = model
        self.pack_tokens = pack_tokens
        self.version = WeightVersion(attempt=0, policy_version=0)
        self.num_optimizer_steps = 0
        self.kl_coef = config.kl.coef
        """The weight of the KL in the loss. The weight is adapted after each step if `kl.target` is set."""
        self.after_row: Callable[[], None] = lambda: None
        """Is called after the passes of a model over a row: forward and backward, or forward alone."""

    @property
    def export_dtype(self) -> str:
        """The type in which this policy is exported, for example "bfloat16"."""
        return export_dtype(
            self.config, self.model.dtype, self.engine.compute_dtype, on_cpu=self.engine.device.type == "cpu"
        )

    def check(self, batch: TrainBatch) -> None:
        """Raises `InvalidArgument` for a batch that the model cannot train on."""
        check_batch(batch, vocab_size=self.model.vocab_size, max_positions=self.model.max_context_tokens)
        check_rewards(batch, self.config.loss.objective)
        check_supports(batch, self.config.sampling)

    def rollouts_of_parts(self, groups: Sequence[TrainGroup]) -> list[set[int]]:
        """Returns, for each part of the data, the indices of the rollouts whose tokens its ranks read in a step."""
        num_parts = self.process_group.data_size
        if needs_survey(self.config):
            return [set(range(sum(len(group.rollouts) for group in groups)))] * num_parts
        mini_batches = cut_mini_batches(groups, self.config.grpo.num_mini_batches)
        return rollouts_of_ranks(groups, mini_batches, max_tokens=self.pack_tokens, num_ranks=num_parts)

    def step(self, batch: TrainBatch) -> StepResult:
        """Takes one train step: `num_epochs` x `num_mini_batches` optimizer steps on `loss.objective`.

        Neither packing nor the number of ranks changes the gradient of a mini-batch: the factor of each token comes
        from the whole mini-batch. If the loss or the gradient is not finite on one rank, no rank applies the optimizer
        step. A rank reads the tokens of its own rows alone (`rollouts_of_parts`). `check` must have passed on rank 0.
        """
        started = time.monotonic()
        record = StepRecord()
        refusals = []
        survey = self.survey(batch.groups, batch.temperature) if needs_survey(self.config) else None
        mini_batches = plan_mini_batches(batch.groups, survey, self.config)
        record.num_rejected = sum(part.num_tokens - part.num_counted for part in mini_batches)
        if survey is not None:
            gap = GapSums(survey.tokens.completions.num)
            gap.add(survey.logprobs_N, survey.tokens.behavior_logprobs_N, survey.tokens.completions)
            record.gap = gap.metrics()
        training_began = time.monotonic()
        for epoch in range(self.config.grpo.num_epochs):
            for mini_batch in mini_batches:
                refusal = self._train_on(mini_batch, batch.temperature, record, counts_rows=epoch == 0)
                if refusal:
                    record.num_refused += 1
                    refusals.append(refusal)
        applied = bool(record.grad_norms)
        rates = self._rate_metrics(record.work, time.monotonic() - training_began)
        metrics = step_metrics(
            record,
            batch.groups,
            num_epochs=self.config.grpo.num_epochs,
            kl_coef=self.kl_coef,
            has_reference=self._measures_kl,
            duration_s=time.monotonic() - started,
        )
        metrics |= rates
        if applied:
            self.version = WeightVersion(self.version.attempt, self.version.policy_version + 1)
            self._update_reference()
            self._adapt_kl(record)
        return StepResult(
            applied, "" if applied else "; ".join(refusals), self.version, self.num_optimizer_steps, metrics
        )

    def _train_on(self, mini_batch: MiniBatch, temperature: float, record: StepRecord, *, counts_rows: bool) -> str:
        """Takes one optimizer step, and records it. Returns why the step was not applied; empty if it was."""
        if not mini_batch.num_counted:
            return "correction.filters rejected every token"
        gradient = self.accumulate_gradient(mini_batch, temperature, measures_gap=not record.gap)
        record.work.add(gradient.work)
        if gradient.gap is not None:
            record.gap = gradient.gap.metrics()
        record.num_rows += gradient.num_rows if counts_rows else 0
        loss = gradient.sums.total("loss")
        rate = learning_rate(self.config, self.num_optimizer_steps)
        outcome = self.engine.apply(rate, refuse=not math.isfinite(loss))
        if not outcome.applied:
            return f"the loss ({loss:.4g}) or gradient norm ({outcome.grad_norm:.4g}) is not finite"
        self.num_optimizer_steps += 1
        record.learning_rate = rate
        record.grad_norms.append(outcome.grad_norm)
        record.losses.append(loss)
        record.num_completions += mini_batch.num_completions
        record.applied.merge(gradient.sums)
        return ""

    def _rate_metrics(self, work: Work, training_s: float) -> dict[str, float]:
        own = torch.tensor([work.num_tokens, work.flops], dtype=torch.float64)
        num_tokens, flops = self.process_group.all_reduce(own).tolist()
        device = self.engine.device
        return rate_metrics(
            Work(int(num_tokens), flops),
            training_s=training_s,
            num_ranks=self.process_group.size,
            peak=peak_of(torch.cuda.get_device_name(device)) if device.type == "cuda" else None,
        )

    @cached_property
    def flops(self) -> ModelFlops:
        """Counts the FLOPs of rows."""
        return ModelFlops(self.lm)

    def survey(self, groups: Sequence[TrainGroup], temperature: float) -> Survey:
        """Computes log-probabilities and entropies of all tokens of `groups` under the current policy.

        Every rank gets all values.
        """
        rows, _ = self._pack(groups)
        tokens = LossTokens.of_groups(groups)
        scored_2N = torch.zeros(2, len(tokens))
        with torch.no_grad(), self.engine.kept_copies():
            for row in rows:
                scored = self.engine.forward(row.to(self.process_group.device), temperature)
                is_token_C = row.at_C >= 0
                scored_2N[:, row.at_C[is_token_C]] = torch.stack(scored).cpu()[:, is_token_C]
                self.after_row()
        logprobs_N, entropies_N = self.process_group.all_reduce(scored_2N).float()
        return Survey(logprobs_N, entropies_N, tokens)

    def accumulate_gradient(self, mini_batch: MiniBatch, temperature: float, *, measures_gap: bool = False) -> Gradient:
        """Runs the forward and backward passes of a mini-batch.

        Afterwards the engine has the gradient of the mini-batch's loss, and `DeepSpeedEngine.apply` can apply it.
        """
        process_group = self.process_group
        rows, num_rows = self._pack(mini_batch.groups)
        sums, work = TokenSums(), Work()
        measured: list[tuple[Tensor, LossTokens]] = []
        if self.config.learner.lora.dropout:
            # Only the dropout of adapters is random here. A resumed run draws the same values.
            torch.manual_seed(dropout_seed(self.config.run.seed, self.num_optimizer_steps, process_group.rank))
        with self.engine.kept_copies():
            for number, row_on_cpu in enumerate(rows, start=1):
                work.add(self.flops.of(row_on_cpu, runs_reference=self._measures_kl))
                row = row_on_cpu.to(process_group.device)
                reference_C = None
                if self._measures_kl:
                    reference_C = self.require_reference().logprobs(row, temperature)
                    self.after_row()
                logprobs_C, entropy_C = self.engine.forward(row, temperature)
                tokens = LossTokens.of(row_on_cpu.stretches, mini_batch.num_completions)
                result = row_loss(
                    pick_tokens(mini_batch, tokens, row_on_cpu.at_C).to(process_group.device),
                    logprobs_C,
                    entropy_C,
                    reference_C,
                    self.config,
                    kl_coef=self.kl_coef,
                    num_counted=mini_batch.num_counted,
                )
                # The engine averages the gradients over the ranks; the factor turns the mean back into a sum.
                self.engine.accumulate(result.loss * process_group.size, is_last=number == len(rows))
                sums.add(result)
                if measures_gap:
                    measured.append((result.logprobs_C, tokens))
                self.after_row()
        gap = GapSums.of(measured, mini_batch.num_completions).all_reduce(process_group) if measures_gap else None
        return Gradient(sums.all_reduce(process_group), gap, num_rows, work)

    def _pack(self, groups: Sequence[TrainGroup]) -> tuple[PackedRows, int]:
        process_group = self.process_group
        return pack_for_rank(
            groups,
            max_tokens=self.pack_tokens,
            rank=process_group.data_rank,
            num_ranks=process_group.data_size,
        )

    @property
    def _measures_kl(self) -> bool:
        """Whether a step runs the reference. KL in the reward was subtracted before the step."""
        return self.reference is not None and self.config.kl.place == "loss"

    def _adapt_kl(self, record: StepRecord) -> None:
        if self._measures_kl:
            mean = record.applied.kl_of_completions
            self.kl_coef = adapted_coef(self.config.kl, self.kl_coef, mean, record.num_completions)

    def _update_reference(self) -> None:
        kl = self.config.kl
        if (
            isinstance(self.reference, ReferenceModel)
            and kl.reference_update_steps is not None
            and self.version.policy_version % kl.reference_update_steps == 0
        ):
            self.reference.follow(self.engine.full_parameters(torch.float32), kl.reference_alpha)

    def check_sequence(self, sequence: npt.NDArray[np.int32], field: str) -> None:
        """Raises `InvalidArgument`, which names `field`, if the model cannot score the sequence."""
        if len(sequence) < 2:
            raise invalid(
                field, f"must have at least two tokens, since the first is not scored (found: {len(sequence)})"
            )
        check_tokens(sequence, self.model.vocab_size, field, "the sequence")
        limit = self.model.max_context_tokens
        if limit is not None and len(sequence) > limit:
            raise invalid(field, f"has {len(sequence)} tokens, but the model takes at most {limit}")

    def check_support(self, support: Support, field: str) -> None:
        """Raises `InvalidArgument`, which names `field`, if the model does not have a token of the support."""
        check_tokens(support.token_ids, self.model.vocab_size, field, "the support")

    def logprobs(
        self,
        sequences: list[npt.NDArray[np.int32]],
        temperature: float,
        *,
        is_reference: bool = False,
        supports: Sequence[Support] = (),
    ) -> list[Float32Array]:
        """Computes the log-probability of each token, except the first of each sequence, under the current weights.

        With `supports` (one for each sequence), scores only a sequence's last tokens, and normalizes over each token's
        support. `is_reference` selects the reference's weights. Call this method on all ranks: each rank computes its
        share, and gets all values. Raises `FailedPrecondition` when the run has no reference.
        """
        model = self.require_reference().logprobs if is_reference else self._policy_logprobs
        process_group = self.process_group
        share = math.ceil(sum(map(len, sequences)) / process_group.data_size)
        chunks = cut_sequences(sequences, min(share, self.pack_tokens))
        lengths = [len(support.counts) for support in supports] or [len(sequence) - 1 for sequence in sequences]
        starts = np.cumsum([0, *lengths])
        scored = torch.zeros(int(starts[-1]))
        for first in range(0, len(chunks), process_group.data_size):
            mine = chunks[first + process_group.data_rank :][:1]
            # A rank without a chunk takes part in the collectives.
            row = sequence_row(sequences[mine[0]], supports[mine[0]]) if mine else idle_row()
            logprobs_C = model(row.to(process_group.device), temperature).float().cpu()
            for chunk in mine:
                scored[starts[chunk.start] : starts[chunk.stop]] = logprobs_C
            self.after_row()
        return [part.numpy() for part in process_group.all_reduce(scored).float().split(lengths)]

    def require_reference(self) -> Reference:
        """Returns the reference. Raises `FailedPrecondition` when the run has no reference."""
        if self.reference is None:
            raise FailedPrecondition(
                "this run has no reference policy: set kl.coef above 0, or kl.reference to always",
                reason=ErrorReason.NO_REFERENCE,
            )
        return self.reference

    def _policy_logprobs(self, row: PackedRow, temperature: float) -> Tensor:
        with torch.no_grad():
            logprobs_C, _ = self.engine.forward(row, temperature)
        return logprobs_C

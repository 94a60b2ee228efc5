"""Commands of the learner, as one rank executes them. All ranks run the same code; rank 0 also returns the results."""

import logging
import math
import time
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from services.learner.engine.deepspeed_engine import DeepSpeedEngine
from services.learner.engine.deepspeed_settings import (
    policy_sharding,
    reference_sharding,
    settle_kernels,
    settle_on_machine,
)
from services.learner.engine.memory_settings import settle_on_memory
from services.learner.engine.reference import PolicyWithoutAdapters, Reference, ReferenceModel
from services.learner.engine.sharded_loading import load_model
from services.learner.learner import Learner, StepResult
from services.learner.model.model_check import check_model
from services.learner.model.policy import load_policy, load_reference
from services.learner.publish import WeightPublisher, make_manifest, published_tensors
from services.learner.ranks.process_group import ProcessGroup
from services.learner.ranks.shares import send_shares
from services.learner.step_profiler import Profile, StepProfiler
from services.learner.storage.checkpoints import (
    FileDigest,
    is_there,
    load_checkpoint,
    write_checkpoint,
    written_stage,
)
from services.learner.storage.export import delete_other_exports, export_model
from services.learner.storage.file_tensors import FileTensors
from services.learner.storage.finishing import CheckpointFinisher
from shoal.arrays import Float32Array
from shoal.config import RunConfig
from shoal.config.live import check_live
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, ShoalError
from shoal.models.model_folder import model_config, resolve_model
from shoal.rollout import TrainBatch, WeightVersion
from shoal.v1 import learner_pb2
from shoal.weights.manifest import Manifest, TensorHash
from shoal.wire import int32_from_wire, invalid, supports_from_wire, version_from_wire
from shoal.worker.lifecycle import Progress, silent

_log = logging.getLogger(__name__)
_SETTLED = {"zero_stage", "compute_dtype", "pack_tokens", "gradient_checkpointing"}


@dataclass(frozen=True)
class SentWeights:
    """The result of a publish."""

    hashes: tuple[TensorHash, ...]
    finished: float
    """The value of `time.monotonic()` when the last tensor had been sent."""
    canary_logprobs: Float32Array | None


class LearnerCommands:
    """The commands of one rank, and the learner that they act on. Call every method on all ranks, in the same order."""

    def __init__(self, process_group: ProcessGroup, data_dir: Path) -> None:
        self.process_group = process_group
        self._data_dir = data_dir
        self._run_dir = data_dir
        self._shares_gpu = False
        self._learner: Learner | None = None
        self.manifest = Manifest(())
        """The tensors that are broadcast; none before `configure`."""
        self._finisher = CheckpointFinisher(process_group)
        self.profiler = StepProfiler(process_group)

    @property
    def learner(self) -> Learner:
        """The configured learner. Raises `FailedPrecondition` before `configure`."""
        if self._learner is None:
            reason = ErrorReason.NOT_READY
            raise FailedPrecondition("the learner is not configured: call Configure first", reason=reason)
        return self._learner

    def configure(
        self, run_id: str, config: RunConfig, progress: Progress = silent, *, zero_stage: int | None = None
    ) -> None:
        """Loads the run's model, and drops the previous model.

        `zero_stage` is the stage of the checkpoint, if the configuration sets none. Raises, on every rank alike,
        `InvalidArgument` if a rank cannot load the model, and `FailedPrecondition` if the trained weights could not be
        exported in the form of the model's files.
        """
        self._run_dir, self._shares_gpu = self._data_dir / run_id, config.launch.single_gpu
        process_group = self.process_group
        self._drop_learner()
        device = process_group.device
        settings = settle_on_machine(config.learner, device=device, num_ranks=process_group.size, zero_stage=zero_stage)
        settle_kernels(config, device=device)
        process_group.form_sequence_groups(settings.sequence_parallel_size)
        with process_group.raising_on_all():
            progress("finding the model")
            folder = resolve_model(config.model.path, config.model.revision)
            progress("checking the model")
            model = model_config(folder)
            check_model(folder, settings, trust_remote_code=config.model.trust_remote_code)
        is_open = zero_stage is None and config.learner.zero_stage is None
        settings = settle_on_memory(config, settings, folder, process_group, is_stage_open=is_open)
        load = partial(load_model, process_group=process_group, trust_remote_code=config.model.trust_remote_code)
        progress("reading the weights")
        policy = load_policy(
            folder,
            settings,
            seed=config.run.seed,
            load=partial(load, sharding=policy_sharding(settings), quantization=settings.lora.quantization),
            sequence_group=process_group.sequence_group,
        )
        loaded = None
        if config.loads_reference:
            progress("reading the weights of the reference")
            loaded = load_reference(
                folder,
                settings,
                is_fixed=config.kl.reference_update_steps is None,
                load=partial(load, sharding=reference_sharding(settings)),
                sequence_group=process_group.sequence_group,
            )
        progress("setting up DeepSpeed and the optimizer")
        engine = DeepSpeedEngine(policy, settings, device=process_group.device)
        engine.set_entropy_gradient(config.loss.entropy_coef != 0)
        with process_group.raising_on_all():
            # Fail now: an export would fail only after all training.
            FileTensors(policy.lm, getattr(torch, model.dtype), folder)
        reference: Reference | None = None
        if loaded is not None:
            reference = ReferenceModel(loaded, settings, device=process_group.device)
        elif config.kl.needs_reference:
            reference = PolicyWithoutAdapters(engine, policy.lm)
        tokens = settings.row_tokens
        self._learner = Learner(config, process_group, engine, reference, lm=policy.lm, model=model, pack_tokens=tokens)
        self._learner.after_row = self.profiler.after_row
        self.manifest = make_manifest(engine, config, model)
        sizes = {"num_parameters": sum(map(math.prod, engine.shapes.values())), "num_trained": engine.num_trained}
        _log.info("model loaded", extra={"model": str(folder), **settings.model_dump(include=_SETTLED), **sizes})

    def _drop_learner(self) -> None:
        if self._learner is not None:
            self._learner.engine.close()
            if isinstance(self._learner.reference, ReferenceModel):
                self._learner.reference.close()
            self._learner = None

    def set_hyperparameters(self, config: RunConfig) -> None:
        """Replaces the configuration. `config` may differ only in the fields that `shoal.config.live` allows."""
        learner = self.learner
        if config.kl.coef != learner.config.kl.coef:  # `kl.target` adapts it, and refuses such a change.
            learner.kl_coef = config.kl.coef
        learner.config = config
        learner.engine.set_entropy_gradient(config.loss.entropy_coef != 0)

    def check_hyperparameters(self, config: RunConfig) -> None:
        """Raises `InvalidArgument` if `config` changes a field that cannot change in an active run."""
        check_live(self.learner.config, config)

    def check_attempt(self, attempt: int) -> None:
        """Raises an error for an attempt older than the current one."""
        present = self.learner.version.attempt
        if attempt < present:
            raise invalid("attempt", f"must be at least {present}, the current attempt (given: {attempt})")

    def release_cache(self) -> None:
        """Releases memory that torch keeps for later allocations, if a generator shares the GPU and may need it."""
        if self._shares_gpu:
            torch.cuda.empty_cache()

    def train_step(self, batch: TrainBatch) -> StepResult:
        """Takes a train step with `Learner.step`, and records it if a recording is under way.

        Rank 0 first sends the other ranks their shares of the batch.
        """
        with self.profiler.step(self.learner):
            if self.process_group.rank == 0 and self.process_group.size > 1:
                send_shares(self.process_group, batch, self.learner.rollouts_of_parts(batch.groups))
            return self.learner.step(batch)

    def begin_profile(self, request: learner_pb2.ProfileRequest) -> "Future[Profile]":
        """Records the next train steps with `StepProfiler.begin`."""
        return self.profiler.begin(self._run_dir / "profiles", request.num_steps)

    def check_step(self, batch: TrainBatch) -> None:
        """Raises the error of a step that the learner cannot take, or that was built for another weight version."""
        self._check_version(batch.expected_version, f"step {batch.train_step_id} was built")
        self.learner.check(batch)

    def _check_version(self, expected: WeightVersion, what: str) -> None:
        version = self.learner.version
        if version != expected:
            raise FailedPrecondition(
                f"{what} for weight version {expected}, but the learner has version {version} (see GetStatus)",
                reason=ErrorReason.VERSION_MISMATCH,
                metadata={"version": str(version)},
            )

    def check_logprobs(self, request: learner_pb2.ComputeLogprobsRequest) -> None:
        """Raises an error if the learner cannot compute the log-probabilities of a request."""
        learner = self.learner
        if request.model == learner_pb2.MODEL_REFERENCE:
            learner.require_reference()
        sequences = [int32_from_wire(data, f"token_ids[{index}]") for index, data in enumerate(request.token_ids)]
        for index, sequence in enumerate(sequences):
            learner.check_sequence(sequence, f"token_ids[{index}]")
        for index, support in enumerate(supports_from_wire(request, sequences)):
            learner.check_support(support, f"support_token_ids[{index}]")

    def compute_logprobs(self, request: learner_pb2.ComputeLogprobsRequest) -> list[Float32Array]:
        """Computes each sequence's log-probabilities under the policy or the reference, as `Learner.logprobs` does."""
        sequences = [int32_from_wire(data, "token_ids") for data in request.token_ids]
        is_reference = request.model == learner_pb2.MODEL_REFERENCE
        supports = supports_from_wire(request, sequences)
        return self.learner.logprobs(sequences, request.temperature, is_reference=is_reference, supports=supports)

    def publish_weights(
        self, request: learner_pb2.PublishWeightsRequest, publisher: WeightPublisher | None
    ) -> SentWeights:
        """Gathers the manifest's tensors once, and broadcasts them from rank 0, which has the publisher.

        Only rank 0's result counts. An error of `WeightPublisher.send` is raised after the last collective, so that no
        other rank waits forever.
        """
        learner, manifest = self.learner, self.manifest
        tensors = published_tensors(learner.engine, learner.config, manifest)
        hashes: tuple[TensorHash, ...] = ()
        error: ShoalError | None = None
        if publisher is None:
            for _ in tensors:
                pass
        else:
            within_s = request.timeout.ToNanoseconds() / 1e9 if request.HasField("timeout") else None
            try:
                hashes = publisher.send(request.epoch, manifest, tensors, within_s=within_s)
            except ShoalError as raised:
                error = raised
        finished = time.monotonic()
        canary = int32_from_wire(request.canary.token_ids, "canary.token_ids")
        # After the broadcast, while the generators load: they are paused until then.
        logprobs = learner.logprobs([canary], temperature=1.0)[0] if len(canary) else None
        if error is not None:
            raise error
        return SentWeights(hashes, finished, logprobs)

    def check_save(self, request: learner_pb2.LearnerServiceSaveCheckpointRequest) -> None:
        """Raises `FailedPrecondition` if the request expects another weight version than the learner has."""
        if request.HasField("expected_version"):
            what = f"checkpoint {request.checkpoint_id} was requested"
            self._check_version(version_from_wire(request.expected_version), what)

    def save_checkpoint(
        self, request: learner_pb2.LearnerServiceSaveCheckpointRequest, progress: Progress = silent
    ) -> "Future[list[FileDigest]]":
        """Writes a checkpoint with `write_checkpoint`, and returns the future of `CheckpointFinisher.begin`."""
        folder, name = self._run_dir / "checkpoints", request.checkpoint_id
        self._finisher.wait()
        mine = write_checkpoint(self.learner, folder, name, progress)
        return self._finisher.begin(folder, name, mine, keep=set(request.keep_checkpoint_ids))

    def has_files(self, checkpoint_id: str, files: Iterable[FileDigest]) -> bool:
        """Returns whether the files of a checkpoint exist and have the right sizes."""
        return is_there(self._run_dir / "checkpoints", checkpoint_id, files)

    def load_checkpoint(self, request: learner_pb2.LoadCheckpointRequest, progress: Progress = silent) -> WeightVersion:
        """Restores the named checkpoint (see `storage.checkpoints.load_checkpoint`), by default the run's model."""
        self._finisher.wait()
        if request.checkpoint_id:
            checkpoints = self._run_dir / "checkpoints"
            files = [FileDigest(file.path, file.num_bytes, file.sha256) for file in request.files]
            if self.learner.config.learner.zero_stage is None:
                with self.process_group.raising_on_all():
                    stage = written_stage(checkpoints, request.checkpoint_id, files)
                if stage != self.learner.engine.zero_stage:
                    self.configure(self._run_dir.name, self.learner.config, progress, zero_stage=stage)
            load_checkpoint(
                self.learner,
                checkpoints,
                request.checkpoint_id,
                files=files,
                attempt=request.attempt,
                progress=progress,
            )
        else:
            if self.learner.num_optimizer_steps:
                self.configure(self._run_dir.name, self.learner.config, progress)
            self.learner.version = WeightVersion(request.attempt, 0)
        return self.learner.version

    def export_model(self, request: learner_pb2.ExportModelRequest, progress: Progress = silent) -> Path:
        """Exports the policy with `storage.export.export_model`, in the type `Learner.export_dtype`.

        If the request names the export, deletes all other exports that the request does not ask to keep.
        """
        learner, exports = self.learner, self._run_dir / "exports"
        folder = exports / request.export_name if request.export_name else self._run_dir / "model"
        export_model(
            learner.engine,
            learner.lm,
            learner.config.model,
            folder,
            self.process_group,
            dtype=learner.export_dtype,
            lora=learner.config.learner.lora if learner.config.learner.lora.is_on else None,
            progress=progress,
        )
        if request.export_name and self.process_group.rank == 0:
            delete_other_exports(exports, {request.export_name, *request.keep_export_names})
        return folder

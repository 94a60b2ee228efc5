"""One rank's share of every command. The same code on all ranks; rank 0 also answers with what came of it."""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from services.learner.checkpoint import FileDigest, load_checkpoint, save_checkpoint
from services.learner.deepspeed_engine import DeepSpeedEngine
from services.learner.deepspeed_settings import check_machine
from services.learner.export import export_model
from services.learner.learner import Learner, StepResult
from services.learner.model import load_policy, load_reference
from services.learner.publish import WeightPublisher, make_manifest
from services.learner.ranks import Command, Ranks, split_messages
from services.learner.reference import ReferenceModel
from shoal.config import RunConfig, parse_config
from shoal.errors import FailedPrecondition, ShoalError
from shoal.models import model_config, resolve_model
from shoal.rollout import Float32Array, TrainBatch, WeightVersion
from shoal.v1 import learner_pb2
from shoal.weights.manifest import Manifest, TensorHash
from shoal.wire import batch_from_wire, int32_from_wire

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SentWeights:
    """What was published."""

    hashes: tuple[TensorHash, ...]
    finished: float
    """When the last tensor was out, in `time.monotonic()`."""
    canary_logprobs: Float32Array | None


class LearnerRank:
    """The learner of this rank, once it is configured. Every method is called on all ranks, in the same order."""

    def __init__(self, ranks: Ranks, data_dir: Path) -> None:
        self.ranks = ranks
        self._data_dir = data_dir
        self._run_dir = data_dir
        self._learner: Learner | None = None
        self._manifest: Manifest | None = None

    @property
    def learner(self) -> Learner:
        """Raises `FailedPrecondition` before `configure`."""
        if self._learner is None:
            raise FailedPrecondition("the learner is not configured: call Configure first", reason="NOT_CONFIGURED")
        return self._learner

    @property
    def manifest(self) -> Manifest:
        """What is broadcast. Raises `FailedPrecondition` before `configure`."""
        if self._manifest is None:
            raise FailedPrecondition("the learner is not configured: call Configure first", reason="NOT_CONFIGURED")
        return self._manifest

    def configure(self, run_id: str, config: RunConfig) -> None:
        """Loads the model, in place of what was loaded.

        Raises, on every rank alike, `InvalidArgument` when a rank cannot.
        """
        self._run_dir = self._data_dir / run_id
        settings, ranks = config.learner, self.ranks
        if self._learner is not None:
            self._learner.engine.close()
            if self._learner.reference is not None:
                self._learner.reference.close()
            self._learner = None
        check_machine(settings, device=ranks.device, num_ranks=ranks.size)
        ranks.share_rows(settings.sequence_parallel_size)
        with ranks.together():
            folder = resolve_model(config.model.path, config.model.revision)
            model = model_config(folder)
            policy = load_policy(folder, settings, sequence_group=ranks.sequence_group)
            policy.scorer.entropy_gradient = config.loss.entropy_coef != 0
            reference = None
            if config.kl.needs_reference:
                is_fixed = config.kl.reference_update_steps is None
                reference = load_reference(folder, settings, is_fixed=is_fixed, sequence_group=ranks.sequence_group)
        engine = DeepSpeedEngine(policy, settings, device=ranks.device)
        self._learner = Learner(
            config,
            ranks,
            engine,
            None if reference is None else ReferenceModel(reference, settings, device=ranks.device),
            lm=policy.lm,
            model=model,
        )
        self._manifest = make_manifest(engine, config, model)
        num_parameters = sum(spec.num_elements for spec in self._manifest.tensors)
        _log.info("model loaded", extra={"model": str(folder), "num_parameters": num_parameters})

    def train_step(self, batch: TrainBatch) -> StepResult:
        """As `Learner.step`."""
        result = self.learner.step(batch)
        if self.learner.config.launch.single_gpu:
            # What torch keeps for its next allocations the generator needs now.
            torch.cuda.empty_cache()
        return result

    def compute_logprobs(self, request: learner_pb2.ComputeLogprobsRequest) -> list[Float32Array]:
        """For each sequence as `Learner.logprobs`, of the policy or of the reference."""
        sequences = [int32_from_wire(data, "token_ids") for data in request.token_ids]
        is_reference = request.model == learner_pb2.MODEL_REFERENCE
        return self.learner.logprobs(sequences, request.temperature, is_reference=is_reference)

    def publish_weights(
        self, request: learner_pb2.PublishWeightsRequest, publisher: WeightPublisher | None
    ) -> SentWeights:
        """One pass over all weights.

        Rank 0 has the publisher, and only its result counts. What it raises (`WeightPublisher.send`) it raises after
        the last collective, so that the other ranks are not left alone in one.
        """
        learner, manifest = self.learner, self.manifest
        tensors = learner.engine.full_parameters(getattr(torch, manifest.tensors[0].dtype))
        hashes: tuple[TensorHash, ...] = ()
        error: ShoalError | None = None
        if publisher is None:
            for _ in tensors:
                pass
        else:
            try:
                hashes = publisher.send(request.epoch, manifest, tensors)
            except ShoalError as raised:
                error = raised
        finished = time.monotonic()
        canary = int32_from_wire(request.canary.token_ids, "canary.token_ids")
        # After the broadcast, beside the generators' loading: they are paused until they have loaded.
        logprobs = learner.logprobs([canary], temperature=1.0)[0] if len(canary) else None
        if error is not None:
            raise error
        return SentWeights(hashes, finished, logprobs)

    def save_checkpoint(self, request: learner_pb2.LearnerServiceSaveCheckpointRequest) -> list[FileDigest]:
        """As `checkpoint.save_checkpoint`."""
        keep = set(request.keep_checkpoint_ids)
        return save_checkpoint(self.learner, self._run_dir / "checkpoints", request.checkpoint_id, keep=keep)

    def load_checkpoint(self, request: learner_pb2.LoadCheckpointRequest) -> WeightVersion:
        """As `checkpoint.load_checkpoint`; without an id back to the model that the configuration names."""
        if request.checkpoint_id:
            files = [FileDigest(file.path, file.num_bytes, file.sha256) for file in request.files]
            load_checkpoint(
                self.learner,
                self._run_dir / "checkpoints",
                request.checkpoint_id,
                files=files,
                attempt=request.attempt,
            )
        else:
            if self.learner.num_optimizer_steps:
                self.configure(self._run_dir.name, self.learner.config)
            self.learner.version = WeightVersion(request.attempt, 0)
        return self.learner.version

    def export_model(self) -> Path:
        """As `export.export_model`, in the type that the model's own files have."""
        learner = self.learner
        folder = self._run_dir / "model"
        dtype = getattr(torch, learner.model.dtype)
        export_model(learner.engine, learner.lm, learner.config.model, folder, self.ranks, dtype=dtype)
        return folder


def follow(rank: LearnerRank) -> None:
    """Does what rank 0 says until it says stop. Raises RuntimeError when rank 0 is gone.

    An error of the domain is rank 0's to report; anything else ends this rank, and with it the others.
    """
    while True:
        command, body = rank.ranks.receive()
        if command is Command.STOP:
            rank.ranks.leave()
            return
        try:
            _take_part(rank, command, body)
        except ShoalError as error:
            _log.info("command failed", extra={"command": command.name, "error": error.message})


def _take_part(rank: LearnerRank, command: Command, body: bytes) -> None:
    match command:
        case Command.IDLE | Command.STOP:
            pass
        case Command.CONFIGURE:
            request = learner_pb2.LearnerServiceConfigureRequest.FromString(body)
            rank.configure(request.run_id, parse_config(request.config))
        case Command.TRAIN_STEP:
            rank.train_step(batch_from_wire(split_messages(body, learner_pb2.TrainStepRequest)))
        case Command.COMPUTE_LOGPROBS:
            rank.compute_logprobs(learner_pb2.ComputeLogprobsRequest.FromString(body))
        case Command.PUBLISH_WEIGHTS:
            rank.publish_weights(learner_pb2.PublishWeightsRequest.FromString(body), None)
        case Command.SAVE_CHECKPOINT:
            rank.save_checkpoint(learner_pb2.LearnerServiceSaveCheckpointRequest.FromString(body))
        case Command.LOAD_CHECKPOINT:
            rank.load_checkpoint(learner_pb2.LoadCheckpointRequest.FromString(body))
        case Command.EXPORT_MODEL:
            rank.export_model()

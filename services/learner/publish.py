"""Publishing on rank 0: the store of the rendezvous, the weight group of the current epoch, the broadcast."""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition, InvalidArgument, ShoalError, Unavailable
from shoal.models.compute_dtype import published_dtype
from shoal.models.model_folder import ModelDescription
from shoal.rpc.options import MAX_MESSAGE_BYTES
from shoal.weights.board import serve_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import ELEMENT_BYTES, Manifest, TensorHash, TensorSpec
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import hash_tensor, send_weights

if TYPE_CHECKING:
    from services.learner.engine.deepspeed_engine import DeepSpeedEngine

_log = logging.getLogger(__name__)

_HASH_BYTES = 48
"""The bytes of a tensor in a message, without its name: a hash, or type and shape, and the fields' lengths."""


def make_manifest(engine: "DeepSpeedEngine", config: RunConfig, model: ModelDescription) -> Manifest:
    """Lists the tensors to broadcast (the tensors of the files or of the adapters), in the published type.

    Tensors of the engine's `float32_shapes` are published in float32. Raises the errors of `FileNames.shapes`, and
    `InvalidArgument` if the list does not fit in a message.
    """
    dtype = published_dtype(config, model.dtype, engine.compute_dtype, on_cpu=engine.device.type == "cpu")
    is_adapter = config.generator.lora == "adapter"
    shapes = engine.adapter_shapes if is_adapter else engine.file_names.shapes(engine.shapes)
    in_float32 = {} if is_adapter else engine.file_names.shapes(engine.float32_shapes)
    num_bytes = sum(len(name) + _HASH_BYTES for name in shapes)
    if num_bytes > MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            f"model.path: the names and hashes of this model's {len(shapes)} tensors take {num_bytes} bytes, but one "
            f"message must hold them all, in at most {MAX_MESSAGE_BYTES} bytes: use a model with fewer experts"
        )
    return Manifest(
        tuple(TensorSpec(name, "float32" if name in in_float32 else dtype, shape) for name, shape in shapes.items())
    )


def canary_dtype(compute_dtype: str, manifest: Manifest) -> str:
    """Returns the type that limits the canary's precision: the published type, or for float32 the compute type."""
    sent = _lowest_type(manifest)
    return compute_dtype if sent == "float32" else sent


def published_tensors(engine: "DeepSpeedEngine", config: RunConfig, manifest: Manifest) -> Iterator[tuple[str, Tensor]]:
    """Yields the whole tensors of the manifest, in the order of the manifest. Exhaust the iterator on all ranks."""
    if config.generator.lora == "adapter":
        return engine.adapter_parameters()
    return engine.file_names.tensors(engine.full_parameters(getattr(torch, _lowest_type(manifest))))


def _lowest_type(manifest: Manifest) -> str:
    return min((spec.dtype for spec in manifest.tensors), key=ELEMENT_BYTES.__getitem__)


class WeightPublisher:
    """Keeps the learner's broadcast group and replaces it for each epoch. Any thread may call the methods."""

    def __init__(
        self, config: RunConfig, *, run_id: str, host: str, interface: str | None = None, device: torch.device
    ) -> None:
        """`host` is where generators reach the store, and `interface` is the address on which the store listens.

        Without an `interface` the store listens on every address, and gloo on the address of `host`.

        Raises `Unavailable` if the store's port is taken, and `InvalidArgument` if the device lacks the backend.
        """
        backend = config.weights.backend
        if backend == "auto":
            # NCCL refuses two members on one GPU, and adapters arrive while an engine's own NCCL is in use.
            may_use_nccl = not config.launch.single_gpu and config.generator.lora == "merged"
            backend = "nccl" if device.type == "cuda" and may_use_nccl else "gloo"
        elif backend == "nccl" and device.type != "cuda":
            raise InvalidArgument(
                "weights.backend: nccl sends from a GPU, but this learner has no GPU; set weights.backend to auto"
            )
        self._backend = backend
        self._config = config.weights
        self._run_id = run_id
        self._host = host
        self._device = device
        self._interface = interface
        self._store = serve_store(interface, config.weights.store_port, timeout_s=self._config.timeout_for(0))
        self._rendezvous: Rendezvous | None = None
        self._group: BroadcastGroup | None = None
        self._connected: Future[None] = Future()
        self._lock = threading.Lock()

    def create_group(self, epoch: int, world_size: int, num_bytes: int) -> Rendezvous:
        """Starts the group of a new epoch for broadcasts of `num_bytes`, and aborts the old group. Waits for neither.

        A repeated call changes nothing. Raises `FailedPrecondition` for any other call whose epoch is not newer.
        """
        with self._lock:
            known = self._rendezvous
            if known is not None and (epoch, world_size) == (known.epoch, known.world_size):
                return known
            if known is not None and epoch <= known.epoch:
                raise FailedPrecondition(
                    f"epoch {epoch} is not newer than epoch {known.epoch} of the current weight group",
                    reason=ErrorReason.EPOCH_NOT_NEWER,
                    metadata={"epoch": str(known.epoch)},
                )
            self._abort(f"epoch {epoch} begins")
            rendezvous = Rendezvous(
                run_id=self._run_id,
                epoch=epoch,
                store_host=self._host,
                store_port=self._store.port,
                world_size=world_size,
                backend=self._backend,
                timeout_s=self._config.timeout_for(num_bytes),
            )
            self._rendezvous = rendezvous
            self._connected = Future()
            if world_size == 1:
                self._connected.set_result(None)
            else:
                self._group = BroadcastGroup(
                    rendezvous,
                    rank=0,
                    store=self._store,
                    device=str(self._device),
                    hostname=self._interface or self._host,
                )
                threading.Thread(
                    target=_connect, args=(self._group, self._connected), name=f"weights-meet-{epoch}", daemon=True
                ).start()
            return rendezvous

    def connected(self, epoch: int) -> Future[None]:
        """Returns a future that ends when all members of the epoch's group have joined.

        The future fails with `Unavailable` or `DeadlineExceeded`. Raises `FailedPrecondition` for another epoch.
        """
        with self._lock:
            current = None if self._rendezvous is None else self._rendezvous.epoch
            if epoch != current:
                found = "there is no weight group yet" if current is None else f"the weight group has epoch {current}"
                raise FailedPrecondition(
                    f"epoch {epoch} is not current: {found}",
                    reason=ErrorReason.NOT_CURRENT_EPOCH,
                    metadata={"epoch": "" if current is None else str(current)},
                )
            return self._connected

    def send(
        self,
        epoch: int,
        manifest: Manifest,
        tensors: Iterator[tuple[str, Tensor]],
        *,
        within_s: float | None = None,
    ) -> tuple[TensorHash, ...]:
        """Broadcasts tensors to the epoch's group, whose members have joined. Returns the tensors' hashes.

        The broadcast may take `within_s` seconds, by default the timeout of the group's rendezvous.
        Exhausts `tensors` even after an error, since the other ranks take part in each gather. If the learner is the
        only member, only hashes the tensors. Raises `Unavailable` or `DeadlineExceeded`; then the group is unusable.
        """
        group = None
        try:
            self.connected(epoch).result(timeout=0)
            with self._lock:
                group = self._group
            if group is not None:
                return send_weights(group, manifest, tensors, within_s=within_s)
            return tuple(_hash(spec, tensor) for spec, (_, tensor) in zip(manifest.tensors, tensors, strict=True))
        except ShoalError as error:
            if group is not None:
                group.abort(error.message)
                if self._is_current(group):
                    error.metadata.update(group.missing_after_abort())
            raise
        finally:
            for _ in tensors:
                pass

    def _is_current(self, group: BroadcastGroup) -> bool:
        """Returns whether no later epoch has begun. A later epoch would excuse the error."""
        with self._lock:
            return self._group is group

    def close(self) -> None:
        """Aborts the current group."""
        with self._lock:
            self._abort("the learner ends")

    def _abort(self, reason: str) -> None:
        group, self._group = self._group, None
        if group is not None:
            # The abort notifies the members through the store; a caller's event loop must not wait for that.
            threading.Thread(target=group.abort, args=(reason,), name="weights-abort", daemon=True).start()


def _connect(group: BroadcastGroup, connected: "Future[None]") -> None:
    try:
        group.connect()
    except ShoalError as error:
        group.abort(error.message)
        connected.set_exception(error)
    except Exception as error:
        _log.exception("weight group not connected")
        group.abort(str(error))
        connected.set_exception(Unavailable(f"the weight group cannot be connected: {error}"))
    else:
        connected.set_result(None)


def _hash(spec: TensorSpec, tensor: Tensor) -> TensorHash:
    return TensorHash(spec.name, hash_tensor(tensor.to(getattr(torch, spec.dtype))))

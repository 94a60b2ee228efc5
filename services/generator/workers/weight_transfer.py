"""Weight transfer inside vLLM's workers.

vLLM calls `BroadcastWeightTransferEngine` in every worker process, and its engine core answers no call meanwhile. So
the group itself handles deadline and abort, and the ranks report on the group's board when they connect and receive.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import UnquantizedFusedMoEMethod
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.utils.nccl import unpinned_nccl_env

from services.generator.workers.adapter_receiver import AdapterReceiver
from shoal.error_reasons import ErrorReason
from shoal.errors import DataLoss, ShoalError
from shoal.weights.board import CONNECTED, open_store, receiving
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, TensorSpec
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import receive_weights

log = logging.getLogger(__name__)


@dataclass
class JoinInfo(WeightTransferInitInfo):
    """The facts that a worker needs to join a group, as plain values, because they go to another process."""

    rendezvous: dict[str, Any]
    """The fields of `Rendezvous`."""
    rank_offset: int
    """Rank of this engine's first worker."""
    hostname: str | None
    """Address to listen on, if it is local."""
    tensors: list[tuple[str, str, list[int]]]
    """Name, type and shape of each tensor, in order."""


@dataclass
class LoadInfo(WeightTransferUpdateInfo):
    """The facts that a worker needs to receive one version."""

    load_id: str
    """An id that distinguishes the loads of a group."""


class BroadcastWeightTransferEngine(WeightTransferEngine[JoinInfo, LoadInfo]):
    """Receives every tensor of the manifest over gloo or nccl, and loads it with vLLM's loader."""

    init_info_cls = JoinInfo
    update_info_cls = LoadInfo
    supports_draft_weight_update = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._group: BroadcastGroup | None = None
        self._manifest = Manifest(())
        self._receiver: AdapterReceiver | None = None
        self.report: dict[str, Any] = {}

    def init_transfer_engine(self, init_info: JoinInfo) -> None:
        """Begins to join a group. Returns immediately, and sampling continues; the board reports the connection."""
        self.shutdown()
        rendezvous = Rendezvous(**init_info.rendezvous)
        self._manifest = Manifest(
            tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in init_info.tensors)
        )
        # The ranks of data-parallel engines follow one another.
        rank = self.parallel_config.data_parallel_index * self.parallel_config.world_size + self.parallel_config.rank
        store = open_store(rendezvous.store_host, rendezvous.store_port, timeout_s=rendezvous.timeout_s)
        self._group = BroadcastGroup(
            rendezvous,
            rank=init_info.rank_offset + rank,
            store=store,
            device=str(self.device),
            hostname=init_info.hostname,
        )
        threading.Thread(target=_connect, args=(self._group, self.device), daemon=True).start()

    def start_weight_update(self) -> None:
        """Prepares the model for a whole new set of weights."""
        if self.device.type == "cpu":
            for layer in self.model.modules():
                if isinstance(method := getattr(layer, "quant_method", None), UnquantizedFusedMoEMethod):
                    pack_at_each_load(method)
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receives and loads the whole manifest. vLLM's method ends with a call that fails on CPU."""
        self.receive_weights(self.parse_update_info(update_info))
        if self.device.type != "cpu":
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: LoadInfo) -> None:
        """Receives the tensors, loads each tensor while the next tensors are being received, and stores a report."""
        self.report = {}
        started = time.monotonic()
        try:
            group = self._member()
            group.board.post(receiving(update_info.load_id), group.rank)
            hashes, receive_s = self._load(group)
        except BaseException as error:
            self.report = {"error": _describe(error)}
            if self._group is not None:
                self._group.abort(f"{type(error).__name__}: {error}")
            raise
        load_s = time.monotonic() - started - receive_s
        self.report = {"hashes": hashes, "receive_s": receive_s, "load_s": load_s}

    def receive_adapter(self, load_id: str, file: Path | None) -> None:
        """Begins to receive the tensors of an adapter during the engine's passes, and writes them to `file`, if
        given."""
        self.report = {}
        self._receiver = AdapterReceiver(self._member(), self._manifest, load_id, file)

    def take_adapter_report(self) -> dict[str, Any]:
        """Waits until the adapter is received. Returns the report."""
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            outcome = receiver.outcome()
            self.report = {"error": _describe(outcome)} if isinstance(outcome, BaseException) else outcome
        return self.report

    def _member(self) -> BroadcastGroup:
        if self._group is None:
            raise DataLoss("the worker has joined no weight group", reason=ErrorReason.NOT_A_MEMBER)
        return self._group

    def _load(self, group: BroadcastGroup) -> tuple[list[tuple[str, str]], float]:
        hashes: list[tuple[str, str]] = []
        receive_s = 0.0

        def tensors() -> Iterator[tuple[str, torch.Tensor]]:
            nonlocal receive_s
            incoming = receive_weights(group, self._manifest)
            while True:
                asked = time.monotonic()
                item = next(incoming, None)
                receive_s += time.monotonic() - asked
                if item is None:
                    return
                spec, tensor, found = item
                hashes.append((found.name, found.xxh3))
                yield spec.name, tensor

        try:
            self.model.load_weights(tensors())
        except ShoalError:
            raise
        except Exception as error:
            where = hashes[-1][0] if hashes else "the first tensor"
            raise DataLoss(
                f"vLLM cannot load {where}: {type(error).__name__}: {error}", reason=ErrorReason.WEIGHTS_REFUSED
            ) from error
        if len(hashes) != len(self._manifest.tensors):
            raise DataLoss(
                f"vLLM's loader took only {len(hashes)} of {len(self._manifest.tensors)} tensors",
                reason=ErrorReason.WEIGHTS_REFUSED,
            )
        if missed := self._missed_layers():
            raise DataLoss(
                f"vLLM took all tensors, but {len(missed)} layers got no tensor, including {missed[0]}",
                reason=ErrorReason.WEIGHTS_REFUSED,
            )
        return hashes, receive_s

    def _missed_layers(self) -> list[str]:
        """Lists the layers that have weights but received none, except a tied head, which shares those of the
        embedding.

        Some models copy tensors into their parameters without vLLM's loaders. During a load the parameters have no
        memory, so the copy is lost, and the layer keeps its former weights.
        """
        # vLLM takes this setting of a model that can read images from the whole model's configuration.
        is_tied = getattr(self.model_config.hf_config, "tie_word_embeddings", False)
        return [
            name
            for name, layer in self.model.named_modules()
            if get_layerwise_info(layer).can_load()
            and not get_layerwise_info(layer).load_numel
            and next(layer.parameters(recurse=False), None) is not None
            and not (is_tied and isinstance(layer, ParallelLMHead))
        ]

    def finish_weight_update(self) -> None:
        """Completes the load of the received tensors."""
        finalize_layerwise_reload(self.model, self.model_config)
        if self.device.type == "cpu":
            self._repack_tied_heads()
            self._copy_convolutions()

    def _repack_tied_heads(self) -> None:
        """Packs the weight of a tied output head again.

        On CPU the head multiplies with a packed copy of its weight. The reload packs the layers that received tensors.
        A tied head receives none, since it shares the embedding's. So it would keep its former weights.
        """
        for layer in self.model.modules():
            if isinstance(layer, ParallelLMHead) and layer.weight.numel():
                layer.quant_method.process_weights_after_loading(layer)

    def _copy_convolutions(self) -> None:
        """Copies convolutions into the tensors that Mamba-2 layers compute with.

        Such a tensor is a view of the convolution's weight. On CPUs with bfloat16, vLLM packs the weight and gives it
        other memory. So the view would keep the former weights.
        """
        for layer in self.model.modules():
            unpacked = getattr(getattr(layer, "conv1d", None), "_cpu_unpacked_conv_weight", None)
            if unpacked is not None and "conv_weights" in layer._buffers:
                layer.conv_weights.copy_(unpacked)

    def abandon(self) -> None:
        """Cleans up after a failed load: drops the tensors of unfinished layers, and completes the other layers.

        After the cleanup the weights are a mixture of two versions, but every layer runs, and the next load starts
        clean. Without the cleanup the next load would also count the tensors of the failed load.
        """
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                info.loaded_weights.clear()
                info.load_numel = 0
        reload_log = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
        level = reload_log.level
        # Otherwise vLLM warns for every layer that nothing was loaded.
        reload_log.setLevel(logging.ERROR)
        try:
            self.finish_weight_update()
        finally:
            reload_log.setLevel(level)

    def shutdown(self) -> None:
        """Leaves the group."""
        if self._group is not None:
            self._group.close()
            self._group = None


class WorkerExtension:
    """The methods that Shoal adds to vLLM's workers."""

    weight_transfer_engine: BroadcastWeightTransferEngine
    model_runner: Any
    _weight_update_active: bool

    def take_load_report(self) -> dict[str, Any]:
        """Returns the report of the last load: hashes and times, or the error; empty before the first load."""
        return self.weight_transfer_engine.report

    def begin_adapter(self, load_id: str, file: str) -> None:
        """Begins to receive an adapter with `receive_adapter`; the engine's first rank writes the file."""
        engine = self.weight_transfer_engine
        engine.receive_adapter(load_id, Path(file) if engine.parallel_config.rank == 0 else None)

    def take_adapter_report(self) -> dict[str, Any]:
        """Waits until the adapter is received. Returns its report, in the form of `take_load_report`."""
        return self.weight_transfer_engine.take_adapter_report()

    def used_tensors(self, names: Sequence[str]) -> list[str]:
        """Returns the adapter's tensors that layers of this rank use. vLLM silently ignores all other tensors."""
        from vllm.lora.utils import parse_fine_tuned_lora_name

        manager = self.model_runner.lora_manager._adapter_manager
        mapper = getattr(manager.model, "hf_to_vllm_mapper", None)
        renames = None if mapper is None else mapper.get_rename_mapper()
        layers = {part for name in manager.modules for part in manager.packed_modules.get(name, [name])}
        return [name for name in names if parse_fine_tuned_lora_name(name, renames)[0] in layers]

    def abandon_load(self) -> None:
        """Cleans up after a load that failed on some rank. Called on every rank."""
        from vllm.config import set_current_vllm_config

        self._weight_update_active = False
        engine = self.weight_transfer_engine
        with set_current_vllm_config(engine.vllm_config):
            engine.abandon()


def pack_at_each_load(method: Any) -> None:
    """Makes vLLM's method for a layer of experts pack the weights at each load, not only at the first.

    On CPU the experts multiply with packed copies of their weights.
    """
    if hasattr(method, "_packs_at_first_load"):
        return
    method._packs_at_first_load = method.process_weights_after_loading

    def process_weights_after_loading(layer: torch.nn.Module) -> None:
        kernel = method.moe_kernel
        method._packs_at_first_load(layer)
        if kernel is not None:
            kernel.fused_experts.process_weights_after_loading(layer)

    method.process_weights_after_loading = process_weights_after_loading


def _connect(group: BroadcastGroup, device: torch.device) -> None:
    try:
        if device.type == "cuda":
            torch.cuda.set_device(device)
        # vLLM sets NCCL variables for its own communicators. With them, the ranks and the learner would wait forever.
        with unpinned_nccl_env():
            group.connect()
        group.board.post(CONNECTED, group.rank)
    except Exception as error:
        log.warning("rank %d cannot join the weight group: %s", group.rank, error)
        group.abort(f"rank {group.rank} cannot join: {error}")


def _describe(error: BaseException) -> dict[str, str]:
    if isinstance(error, ShoalError):
        return {"kind": type(error).__name__, "reason": error.reason, "message": error.message}
    return {"kind": "Internal", "reason": "INTERNAL", "message": f"{type(error).__name__}: {error}"}

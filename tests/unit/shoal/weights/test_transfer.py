"""Groups of real gloo members, one per thread."""

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from shoal.errors import DeadlineExceeded, Unavailable
from shoal.weights.board import ARRIVED, GroupBoard, open_store, serve_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.manifest import Manifest, TensorSpec
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import hash_tensor, receive_weights, send_weights

torch = pytest.importorskip("torch")

HOST = "127.0.0.1"
MANIFEST = Manifest(
    (
        TensorSpec("embed", "float32", (1_500_000,)),
        TensorSpec("norm", "float32", (5,)),
        TensorSpec("proj", "bfloat16", (7, 3)),
        TensorSpec("scalar", "float16", ()),
        TensorSpec("head", "float32", (1023, 1025)),
    )
)


@pytest.fixture
def rendezvous() -> Iterator[Rendezvous]:
    store = serve_store(HOST, 0, timeout_s=60)
    yield Rendezvous("run", 1, HOST, store.port, world_size=3, backend="gloo", timeout_s=60)
    del store


def member(rendezvous: Rendezvous, rank: int) -> BroadcastGroup:
    store = open_store(rendezvous.store_host, rendezvous.store_port, timeout_s=60)
    return BroadcastGroup(rendezvous, rank=rank, store=store)


def in_threads(*calls: Callable[[], object]) -> list[object]:
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


def connected(rendezvous: Rendezvous) -> list[BroadcastGroup]:
    groups = [member(rendezvous, rank) for rank in range(rendezvous.world_size)]
    in_threads(*(group.connect for group in groups))
    return groups


def some_tensors() -> dict[str, "torch.Tensor"]:
    """Tensors like those of a trainer: all float32, one of them not contiguous."""
    generator = torch.Generator().manual_seed(0)
    tensors = {spec.name: torch.randn(spec.shape, generator=generator) for spec in MANIFEST.tensors}
    tensors["head"] = torch.randn((1025, 1023), generator=generator).t()
    return tensors


def test_every_member_receives_the_senders_bytes_in_the_manifests_types(rendezvous: Rendezvous) -> None:
    sent = some_tensors()
    sender, *receivers = connected(rendezvous)
    hashes, *received = in_threads(
        lambda: send_weights(sender, MANIFEST, sent.items()),
        *(lambda group=group: list(receive_weights(group, MANIFEST)) for group in receivers),
    )
    for items in received:
        assert tuple(item[2] for item in items) == hashes
        for spec, tensor, found in items:
            expected = sent[spec.name].to(getattr(torch, spec.dtype))
            assert tensor.dtype == expected.dtype and torch.equal(tensor, expected), spec
            assert found.xxh3 == hash_tensor(expected.contiguous())
    for group in (sender, *receivers):
        group.close()


def test_a_group_of_a_later_epoch_works_over_the_same_store(rendezvous: Rendezvous) -> None:
    for group in connected(rendezvous):
        group.abort("epoch 2 begins")
    sender, receiver = connected(replace(rendezvous, epoch=2, world_size=2))
    tensor = torch.zeros(4)
    in_threads(lambda: sender.wait(sender.start(torch.ones(4))), lambda: receiver.wait(receiver.start(tensor)))
    assert tensor.tolist() == [1.0] * 4


def test_a_member_that_never_arrives_is_waited_for_until_the_deadline_only(rendezvous: Rendezvous) -> None:
    with (
        closing(member(replace(rendezvous, timeout_s=0.3), 1)) as group,
        pytest.raises(DeadlineExceeded, match="3 members: the rendezvous"),
    ):
        group.connect()


def test_an_abort_by_another_member_ends_a_waiting_broadcast(rendezvous: Rendezvous) -> None:
    groups = connected(rendezvous)
    threading.Timer(0.3, groups[2].abort, ["no longer wanted"]).start()
    started = time.monotonic()
    with pytest.raises(Unavailable, match="rank 2: no longer"):
        groups[1].wait(groups[1].start(torch.zeros(4)))
    assert time.monotonic() - started < 30, "the group's own deadline is 60 s"


def test_an_abort_ends_members_that_wait_for_others(rendezvous: Rendezvous) -> None:
    group = member(rendezvous, 1)
    board = GroupBoard(group.board.store.underlying_store, rendezvous.run_id, rendezvous.epoch)
    threading.Timer(0.3, board.abort, ["cut"]).start()
    with pytest.raises(Unavailable, match="cut"):
        group.connect()


def die_after_connecting(rendezvous: Rendezvous) -> None:
    member(rendezvous, 0).connect()


def test_a_member_that_dies_is_noticed_at_once(rendezvous: Rendezvous) -> None:
    rendezvous = replace(rendezvous, world_size=2, timeout_s=60)
    process = multiprocessing.get_context("spawn").Process(target=die_after_connecting, args=(rendezvous,))
    process.start()
    with closing(member(rendezvous, 1)) as group:
        group.connect()
        started = time.monotonic()
        with pytest.raises(Unavailable, match="lost a member"):
            group.wait(group.start(torch.zeros(4)))
        assert time.monotonic() - started < 30, "the group's own deadline is 60 s"
    process.join()


def test_a_member_that_dies_while_connecting_does_not_block_the_next_epoch() -> None:
    store = serve_store(HOST, 0, timeout_s=60)
    first = Rendezvous("run", 1, HOST, store.port, world_size=2, backend="gloo", timeout_s=2)
    GroupBoard(store.clone(), "run", 1).post(ARRIVED, 1)  # Rank 1 does nothing else.
    aborted = BroadcastGroup(first, rank=0, store=store)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(aborted.connect)
        time.sleep(0.3)
        aborted.abort("epoch 2 begins")
        second = replace(first, epoch=2, timeout_s=60)
        groups = [BroadcastGroup(second, rank=0, store=store), member(second, 1)]
        in_threads(*(group.connect for group in groups))
        for group in groups:
            group.close()
        with pytest.raises(Unavailable, match="epoch 2 begins"):
            waiting.result()


def test_a_broadcast_that_the_backend_refuses_is_an_error_of_the_group(rendezvous: Rendezvous) -> None:
    class Ended:
        """Behaves as NCCL does after its communicator was aborted."""

        def broadcast(self, tensor: object, root: int) -> None:
            raise RuntimeError("NCCL communicator was aborted on rank 0.\nand a stack")

    group = member(rendezvous, 0)
    group._backend = Ended()
    with pytest.raises(Unavailable, match=r" aborted on rank 0\.$"):
        group.wait(group.start(torch.zeros(4)))


def test_the_error_for_a_store_that_does_not_answer_names_its_address() -> None:
    with pytest.raises(Unavailable, match=rf"{HOST}:1 cannot be reached"):
        open_store(HOST, 1, timeout_s=0.5)

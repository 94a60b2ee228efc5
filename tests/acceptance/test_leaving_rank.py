"""A learner of two machines, each with a torchrun; the second machine goes, and returns. The run goes on."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.local_stack import free_port, guessing_config, write_config
from tests.support.standing import Standing

pytestmark = pytest.mark.timeout(1500)

RUN = "two-machines"


class TwoMachines(Standing):
    """A coordinator, a generator, a reward service, and a learner with a rank on each of two loopback addresses."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, ("generator", "reward"))
        self.rendezvous = f"127.0.0.1:{free_port()}"
        self.learner = f"127.0.0.1:{free_port()}"
        for number in (1, 2):
            self.start_machine(number)

    def start_machine(self, number: int) -> None:
        """Starts a machine's torchrun as deploy/ does, which starts the machine's rank."""
        address = f"127.0.0.{number}"
        self.processes[f"learner-{number}"] = self.start_module(
            f"learner-{number}",
            "torch.distributed.run",
            "--nnodes=2", "--nproc-per-node=1", "--max-restarts=1000", "--shutdown-timeout=120",
            "--rdzv-backend=c10d", "--rdzv-id=learner", f"--rdzv-endpoint={self.rendezvous}", f"--local-addr={address}",
            # On one machine each could be the host of the store, which is the one that stays.
            f"--rdzv-conf=is_host={int(number == 1)}",
            "-m", "services.learner", "--grace-s=100",
            "--coordinator", self.coordinator, "--listen", self.learner, "--data-dir", str(self.folder / "runs"),
            environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"},
        )  # fmt: skip

    def rank_of(self, number: int) -> psutil.Process:
        (rank,) = self.processes[f"learner-{number}"].children()
        return rank

    def machine_goes(self, number: int, by: signal.Signals) -> None:
        """Sends a signal to the machine's torchrun alone, and waits until torchrun and rank have ended."""
        torchrun, rank = self.processes[f"learner-{number}"], self.rank_of(number)
        torchrun.send_signal(by)
        _, alive = psutil.wait_procs([torchrun, rank], timeout=120)
        assert not alive, f"after {by.name} there are still {alive}"

    def steps(self) -> list[int]:
        return [event["attributes"]["step"] for event in self.events(RUN) if event["kind"] == "step"]


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[TwoMachines]:
    with TwoMachines(tmp_path).registered() as services:
        config: dict[str, Any] = guessing_config(
            tmp_path,
            run={"num_steps": 500},
            launch={"num_learner_ranks": 2},
            checkpoint={"every_steps": 1000},
            weights={"timeout_s": 60.0, "store_port": free_port()},
        )
        services.shoal("run", "start", str(write_config(tmp_path / "run.toml", config)), "--name", RUN)
        yield services


def test_a_run_goes_on_when_the_machine_of_another_rank_goes_and_returns(machines: TwoMachines) -> None:
    machines.until(RUN, -1, "step", step=2)
    stayed, first_rank = machines.processes["learner-1"], machines.rank_of(1)

    after = machines.last(RUN)
    machines.machine_goes(2, signal.SIGTERM)
    before = max(machines.steps())
    machines.start_machine(2)
    assert machines.restored_after(RUN, after) == before, "a step was lost with a machine that was told to end"

    saved = machines.saved(RUN)
    after = machines.last(RUN)
    machines.machine_goes(2, signal.SIGKILL)
    machines.start_machine(2)
    assert machines.restored_after(RUN, after) == saved, "the run does not go on from its checkpoint"

    assert stayed.is_running() and not first_rank.is_running(), "torchrun stays, and starts its rank again"
    restarts = [event["message"] for event in machines.events(RUN) if event["kind"] == "restarting"]
    assert len(restarts) == 2, restarts
    machines.shoal("run", "stop")
    machines.until(RUN, after, "state", state="STOPPED")

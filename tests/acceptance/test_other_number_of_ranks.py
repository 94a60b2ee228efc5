"""A live run whose learner is killed and returns with another number of ranks, and then with the former one."""

import psutil
import pytest

from tests.support.local_stack import free_port, guessing_config, write_config
from tests.support.standing import Standing

pytestmark = pytest.mark.timeout(1500)

RUN = "other-ranks"


def test_a_live_run_goes_on_on_one_rank_and_then_on_two_again(standing: Standing) -> None:
    config = guessing_config(
        standing.folder,
        run={"num_steps": 500},
        launch={"num_learner_ranks": 2},
        checkpoint={"every_steps": 1000},
        weights={"timeout_s": 60.0, "store_port": free_port()},
    )
    standing.shoal("run", "start", str(write_config(standing.folder / "run.toml", config)), "--name", RUN)
    standing.until(RUN, -1, "step", step=2)
    for num_ranks in (1, 2):
        saved, after = standing.saved(RUN), standing.last(RUN)
        before = [standing.processes["learner"], *standing.processes["learner"].children()]
        standing.processes["learner"].kill()
        assert not psutil.wait_procs(before, timeout=60)[1], "the other ranks outlive rank 0"
        standing.start_worker("learner", "--num-ranks", str(num_ranks))
        assert standing.restored_after(RUN, after) == saved, "the run does not go on from its checkpoint"
        assert len(standing.processes["learner"].children()) == num_ranks - 1
    failed = [event["message"] for event in standing.events(RUN) if event["kind"] == "worker_failed"]
    assert not failed, failed
    after = standing.last(RUN)
    standing.shoal("run", "stop")
    standing.until(RUN, after, "state", state="STOPPED")

"""`shoal run ...` against a coordinator that follows a script, over real gRPC."""

import json
from typing import Any

import pytest

from shoal.v1 import coordinator_pb2 as pb
from tests.support.parsed_commands import Shoal

pytestmark = pytest.mark.usefixtures("scripted")


def test_status_shows_state_step_groups_and_metrics(shoal: Shoal) -> None:
    code, text, _ = shoal("run", "status")
    assert code == 0
    for part in ("sums", "FINISHED - done", "3 of 5", "24 TRAINED", "objective/scores  0.5"):
        assert part in text, text


def test_json_has_the_field_names_of_the_contract(shoal: Shoal) -> None:
    code, text, _ = shoal("run", "status", "sums", "--output", "json")
    run = json.loads(text)
    assert (code, run["run_id"], run["state"], run["policy_version"]) == (0, "sums", "RUN_STATE_FINISHED", 3)


def test_an_unknown_run_is_not_found(shoal: Shoal) -> None:
    code, text, error = shoal("run", "status", "tomorrow")
    assert (code, text) == (4, "") and "'tomorrow'" in error, error


def test_runs_are_one_line_each_on_a_pipe(shoal: Shoal) -> None:
    assert "sums  FINISHED  3/5" in shoal("run", "list")[1]


def test_rollouts_show_rewards_and_the_next_page(shoal: Shoal, scripted: Any) -> None:
    code, text, _ = shoal("run", "rollouts", "--limit", "1", "--page", "4")
    assert code == 0 and (scripted.listing.page_size, scripted.listing.page_token) == (1, "4")
    for part in ("sums/0  TRAINED in step 2, staleness 1", "'1 + 1?'", "1.000  '2'", "FAILED  '3'", "more: --page 5"):
        assert part in text, text


def test_filters_are_the_fields_of_the_request(shoal: Shoal, scripted: Any) -> None:
    options = ("--step", "7", "--last", "30", "--failed", "--dropped", "--sort", "reward")
    assert shoal("run", "rollouts", "sums", *options)[0] == 0
    assert scripted.listing == pb.ListRolloutsRequest(
        run_id="sums", page_size=30, step=7, last=30, failed=True, dropped=True, order=pb.ROLLOUT_ORDER_REWARD
    )


def test_an_empty_listing_says_so_beside_the_output(shoal: Shoal) -> None:
    for page, words in (((), "filters\n"), (("--page", "900"), "filters from --page 900 on\n")):
        code, output, error = shoal("run", "rollouts", "--step", "99", *page)
        # gRPC may log the end of an earlier test's connection before it.
        assert (code, output) == (0, "") and error.endswith(f"no group passes the {words}"), error


def test_past_events_have_the_times_at_which_they_happened(shoal: Shoal) -> None:
    lines = shoal("run", "watch")[1].splitlines()
    assert [line.split("]")[0] for line in lines] == [f"[{second:6.1f} s" for second in (0, 1, 1, 2, 3, 3)], (
        "the legend has the time of the first step"
    )
    assert "run sums" in lines[0] and lines[0].endswith("2023-11-14 22:13:20 UTC"), lines[0]


def test_a_broken_watch_continues_after_the_last_event(shoal: Shoal, scripted: Any) -> None:
    scripted.breaks_after = 2
    code, text, _ = shoal("run", "watch", "--output", "json")
    assert code == 0
    assert scripted.requests == ["watch from 0", "watch from 2"]
    assert [json.loads(line)["sequence"] for line in text.splitlines()] == [1, 2, 3]
    assert scripted.watched_runs == ["sums", "sums"]


def test_watching_a_run_that_fails_exits_with_1(shoal: Shoal, scripted: Any) -> None:
    scripted.final_state = pb.RUN_STATE_FAILED
    assert shoal("run", "watch")[0] == 1

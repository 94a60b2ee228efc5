"""The clock that the service keeps of a call, besides that of the process."""

import asyncio

import pytest

from services.reward.environments import environment_process


@pytest.mark.parametrize(
    ("busy_s", "left_s"),
    [
        (7.0, 5.0 + environment_process._GRACE_S),
        (10.0, 8.0 + environment_process._GRACE_S),
        (1e9, 25.0 + environment_process._GRACE_S),
    ],
    ids=["a process that says nothing", "one in which others have computed for 3 s", "the longest that they may"],
)
async def test_a_process_has_the_limit_of_a_call_and_what_others_computed_meanwhile(
    busy_s: float, left_s: float
) -> None:
    done = asyncio.get_running_loop().create_future()
    call = environment_process._Call("step", 10.0, max_others_s=20.0, done=done, began_s=100.0, busy_before_s=7.0)
    assert call.left_s(105.0, busy_s) == pytest.approx(left_s)

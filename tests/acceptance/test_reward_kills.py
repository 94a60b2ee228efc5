"""10,000 completions through a real reward service whose pool processes are killed at random."""

from pathlib import Path

import pytest

from tests.reward_client import reward_process
from tests.reward_kills import GROUP_SIZE, check, volley

NUM_COMPLETIONS = 10_000


@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [1, 2])
async def test_no_score_of_ten_thousand_is_changed_by_kills(tmp_path: Path, seed: int) -> None:
    async with reward_process(tmp_path) as reward:
        await reward.configured(num_processes=2)
        num_groups = NUM_COMPLETIONS // GROUP_SIZE
        undisturbed = await volley(reward, num_groups=num_groups)
        disturbed = await volley(reward, num_groups=num_groups, seed=seed, gap=200)
        print(f"seed {seed}: {check(undisturbed, disturbed)}")
        assert disturbed.num_kills >= 10, f"only {disturbed.num_kills} kills"

"""Processes of a real reward service's pool, killed at random; `tests/acceptance/test_reward_kills.py` has more."""

from pathlib import Path

from tests.reward_client import reward_process
from tests.reward_kills import check, volley

NUM_GROUPS = 60


async def test_kills_at_random_change_no_score_and_lose_no_completion(tmp_path: Path) -> None:
    async with reward_process(tmp_path) as reward:
        await reward.configured(num_processes=2)
        undisturbed = await volley(reward, num_groups=NUM_GROUPS)
        disturbed = await volley(reward, num_groups=NUM_GROUPS, seed=1, gap=80)
        assert disturbed.num_kills
        print(check(undisturbed, disturbed))
        restarts = (await reward.status()).num_pool_restarts
        # A process that is killed as it ends the volley is counted when the pool sees it.
        assert disturbed.num_kills - 2 <= restarts <= disturbed.num_kills, f"{restarts} restarts"

"""Whatever a model writes ends in time with an outcome that means what it says, and leaves nothing behind.

Over gRPC, against a reward service in a process of its own. What is hostile is listed in `tests/hostile.py`.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest
import pytest_asyncio

from services.reward.registry import VERIFIERS
from services.reward.verifiers import code
from shoal.rollout import GroundTruth, Score, ScoreOutcome
from shoal.verifiers import BUILT_IN_VERIFIERS, JUDGE_VERIFIERS, MODEL_VERIFIERS
from tests.hostile import LABELS, MARK, PLACES, PROGRAMS, SCRIPTS, SECRET, TEXTS
from tests.reward_client import RewardProcess, completion_request, prompt_request, reward_process
from tests.unit.reward.judge_server import graded, judge_server

in_one_loop = pytest.mark.asyncio(loop_scope="module")

NUM_PROCESSES = 2
TIMEOUT_S, TOTAL_S, REWARD_TIMEOUT_S = 1.0, 4.0, 30.0
SLACK_S = 3.0
"""What a deadline may be late by on a busy machine."""
_CODE = {"timeout_s": TIMEOUT_S, "total_timeout_s": TOTAL_S}
SLOW = ("math", "strict_math", "reasoning_gym")
"""Those that take their whole time on some texts."""
MOST_TOKENS = 40_000
HONEST = "def f(): return 1"
# What each pool process may hold beside itself: bubblewrap, and the first process in the sandbox.
MOST_LEFT = NUM_PROCESSES * 3
PAID = {
    ("multiple_choice", "parentheses"): {0.0},
    ("re_search_f1", ""): {0.0, 0.1},
    ("json_schema", "a million digits"): {0.0, 1.0},
    ("reasoning_gym", ""): {0.0, 0.01, 0.05},
    ("passthrough", ""): {0.0},
}
"""What else than 0 a text may be worth, by verifier and text; "" is any text."""
MEASURES = {"max_length", "up_to_max_length", "soft_overlong", "repetition_penalty"}
"""Verifiers that pay by numbers of tokens, whatever those say."""


@dataclass(frozen=True)
class Place:
    """The service, and the folder that is its for temporary files."""

    reward: RewardProcess
    temporary: Path

    def files(self) -> list[str]:
        return sorted(str(path) for path in self.temporary.rglob("*"))

    async def until_quiet(self) -> list[str]:
        """Names of the processes, once there are no more than the pool needs."""
        async with asyncio.timeout(20):
            names = self._names()
            while len(names) > MOST_LEFT:
                await asyncio.sleep(0.05)
                names = self._names()
        return names

    def _names(self) -> list[str]:
        found = []
        for process in self.reward.descendants():
            try:
                found.append(process.name())
            except psutil.NoSuchProcess:
                continue
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Place]:
    folder = tmp_path_factory.mktemp("reward")
    temporary = folder / "tmp"
    temporary.mkdir()
    async with judge_server() as judge, reward_process(folder, SHOAL_SECRET=SECRET, TMPDIR=str(temporary)) as reward:
        judge.script = lambda number, body: graded(1)
        await reward.configured(
            num_processes=NUM_PROCESSES,
            timeout_s=REWARD_TIMEOUT_S,
            verifiers={"code": _CODE, "code_stdio": _CODE} | {name: {"timeout_s": 2.0} for name in SLOW},
            judge={"base_url": judge.url, "model": "judge"},
        )
        place = Place(reward, temporary)
        files = place.files()
        yield place
        assert await place.until_quiet()
        assert place.files() == files, "temporary files were left behind"
        assert not [where for where in PLACES if (Path(where) / MARK).exists()], "files were written outside"


def needs_sandbox() -> None:
    if why := code.unavailable():
        pytest.skip(f"no sandbox: {why}")


async def score_texts(reward: RewardProcess, verifier: str, texts: Sequence[str]) -> list[Score]:
    requests = [prompt_request([GroundTruth(verifier, LABELS.get(verifier, "the reference"))])]
    for index, text in enumerate(texts):
        requests.append(completion_request(index, text, [7] * min(len(text), MOST_TOKENS)))
    return sorted(await reward.send(requests), key=lambda score: score.sample_index)


async def run_program(reward: RewardProcess, verifier: str, program: str, label: object) -> Score:
    [score] = await reward.send([prompt_request([GroundTruth(verifier, label)]), completion_request(0, program)])
    return score


def test_each_verifier_is_among_those_that_see_hostile_texts() -> None:
    assert set(LABELS) | JUDGE_VERIFIERS | MODEL_VERIFIERS == BUILT_IN_VERIFIERS


@pytest.mark.parametrize("verifier", sorted(set(LABELS) & set(VERIFIERS)))
@in_one_loop
async def test_hostile_text_is_worth_nothing_or_cannot_be_judged_and_breaks_no_verifier(
    place: Place, verifier: str
) -> None:
    if verifier in ("code", "code_stdio"):
        needs_sandbox()
    before = await place.reward.status()
    scores = await score_texts(place.reward, verifier, list(TEXTS.values()))
    for kind, score in zip(TEXTS, scores, strict=True):
        [part] = score.verifier_scores
        where = (
            f"{verifier} on {kind}: {score.outcome} {score.reward} after {part.duration_s:.1f} s {part.detail[:80]!r}"
        )
        assert score.outcome in (ScoreOutcome.SCORED, ScoreOutcome.UNSCORABLE), where
        allowed = PAID.get((verifier, kind), PAID.get((verifier, ""), {0.0}))
        assert score.reward in allowed or verifier in MEASURES, where
        assert part.duration_s < REWARD_TIMEOUT_S, where
    assert (await place.reward.status()).num_pool_restarts == before.num_pool_restarts


@pytest.mark.parametrize("verifier", sorted(JUDGE_VERIFIERS - {"rubric"}))
@in_one_loop
async def test_hostile_text_reaches_a_judge_and_comes_back_judged(place: Place, verifier: str) -> None:
    for kind, score in zip(TEXTS, await score_texts(place.reward, verifier, list(TEXTS.values())), strict=True):
        assert score.outcome is ScoreOutcome.SCORED, f"{verifier} on {kind}: {score.verifier_scores}"


@in_one_loop
async def test_hostile_programs_end_by_their_deadline_are_worth_nothing_and_leave_nothing(place: Place) -> None:
    needs_sandbox()
    cases = [("code", name, program, [test]) for name, (program, test) in PROGRAMS.items()]
    cases += [("code_stdio", name, program, [{"input": "", "output": "1"}]) for name, program in SCRIPTS.items()]
    before = await place.reward.status()
    places = asyncio.Semaphore(NUM_PROCESSES)

    async def attack(verifier: str, name: str, program: str, label: list[object]) -> None:
        async with places:
            score = await run_program(place.reward, verifier, program, label)
        [part] = score.verifier_scores
        where = f"{verifier}, {name}: {score}"
        assert (score.outcome, score.reward) == (ScoreOutcome.SCORED, 0.0), where
        assert part.duration_s < TOTAL_S + SLACK_S, where
        after = await run_program(place.reward, "code", HONEST, ["assert f() == 1"])
        assert after.reward == 1.0, f"after {name}: {after}"

    await asyncio.gather(*(attack(*case) for case in cases))
    assert len(await place.until_quiet()) <= MOST_LEFT
    assert (await place.reward.status()).num_pool_restarts == before.num_pool_restarts


@in_one_loop
async def test_bytes_that_are_no_text_are_refused_and_the_service_goes_on(place: Place) -> None:
    """protobuf lets no such string be written, but nothing keeps other clients from sending one."""
    message = completion_request(0, "MARK").SerializeToString().replace(b"MARK", b"\xff\xfe\xed\xa0")
    requests = [prompt_request([GroundTruth("gsm8k", "5")]).SerializeToString(), message]
    async with grpc.aio.insecure_channel(place.reward.address) as channel:
        call = channel.stream_stream("/shoal.v1.RewardService/ScoreGroup")(iter(requests), timeout=30)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for _ in call:
                pass
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT, error.value
    [score] = await place.reward.score([GroundTruth("gsm8k", "5")], ["5"])
    assert score.reward == 1.0


@in_one_loop
async def test_completions_that_hang_leave_the_others_their_throughput(place: Place) -> None:
    needs_sandbox()
    alone = await gsm8k_per_second(place.reward, seconds=2.0)
    stop = asyncio.Event()

    async def hang() -> None:
        while not stop.is_set():
            await run_program(place.reward, "code", "def f():\n    while True: pass", ["f()"])

    hanging = [asyncio.create_task(hang()) for _ in range(8)]
    # Until the service knows what these are like, they may take every process once.
    await asyncio.sleep(0.5)
    beside = await gsm8k_per_second(place.reward, seconds=6.0)
    stop.set()
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    print(f"gsm8k: {alone:.0f} scores/s alone, {beside:.0f} beside programs that hang: {beside / alone:.0%}")
    assert beside >= 0.1 * alone, f"{beside:.0f} of {alone:.0f} scores/s are left"


async def gsm8k_per_second(reward: RewardProcess, *, seconds: float) -> float:
    """Groups of 16, four at a time, for so long."""
    began = time.monotonic()
    num_scored = 0

    async def score_groups() -> None:
        nonlocal num_scored
        while time.monotonic() - began < seconds:
            scores = await reward.score([GroundTruth("gsm8k", "5")], [f"it is {index}" for index in range(16)])
            assert sum(score.reward for score in scores) == 1.0
            num_scored += len(scores)

    await asyncio.gather(*(score_groups() for _ in range(4)))
    return num_scored / (time.monotonic() - began)


@in_one_loop
async def test_metrics_tell_what_became_of_each(place: Place) -> None:
    labels = {"shoal_outcome": "unscorable", "shoal_verifier": "regex"}

    def seen() -> list[float]:
        return [
            place.reward.metric("shoal_reward_verdicts_total", **labels),
            place.reward.metric("shoal_reward_duration_seconds_count", **labels),
            place.reward.metric("shoal_reward_verdicts_total", shoal_outcome="scored", shoal_verifier="gsm8k"),
            place.reward.metric("shoal_reward_wait_seconds_count", shoal_verifier="gsm8k"),
            place.reward.metric("shoal_reward_open"),
        ]

    before = await asyncio.to_thread(seen)
    await place.reward.score([GroundTruth("gsm8k", "5"), GroundTruth("regex", "(")], ["5", "6"])
    after = await asyncio.to_thread(seen)
    assert [later - earlier for earlier, later in zip(before, after, strict=True)] == [2.0, 2.0, 2.0, 2.0, 0.0]

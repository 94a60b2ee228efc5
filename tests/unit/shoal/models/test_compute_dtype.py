import logging

import pytest

from shoal.models import compute_dtype
from shoal.models.compute_dtype import export_dtype, has_instructions, settled_dtype
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
    ("generator", "weights", "on_cpu", "exported"),
    [
        ("auto", "auto", True, "float32"),
        ("auto", "auto", False, "bfloat16"),
        ("float32", "auto", False, "float32"),
        ("bfloat16", "auto", True, "bfloat16"),
        ("float32", "bfloat16", False, "bfloat16"),
        ("bfloat16", "float32", False, "bfloat16"),
        ("auto", "float32", True, "float32"),
    ],
)
def test_an_export_is_as_fine_as_the_weights_that_the_generators_sample_with(
    generator: str, weights: str, on_cpu: bool, exported: str
) -> None:
    config = run_config(generator={"dtype": generator}, weights={"dtype": weights})
    assert export_dtype(config, "bfloat16", on_cpu=on_cpu) == exported

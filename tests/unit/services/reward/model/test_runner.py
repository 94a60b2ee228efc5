"""The errors of a reward model that does not load."""

from pathlib import Path

import pytest

from services.reward.model.runner import _load
from shoal.config.tables.reward_model import RewardModelConfig
from shoal.errors import InvalidArgument, ResourceExhausted, ShoalError

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")


def _error_of_load(monkeypatch: pytest.MonkeyPatch, error: Exception, *, moves: bool) -> ShoalError:
    class Model(torch.nn.Linear):
        dtype = torch.float32

        def to(self, place: object) -> "Model":
            if place == "cpu":
                raise error
            return self

    def load(*values: object, **options: object) -> tuple[Model, dict[str, list[str]]]:
        if moves:
            return Model(1, 1), {"missing_keys": []}
        raise error

    monkeypatch.setattr(transformers.AutoModelForSequenceClassification, "from_pretrained", load)
    with pytest.raises(ShoalError) as caught:
        _load(RewardModelConfig(path="m", device="cpu", dtype="float32"), Path("m"))
    return caught.value


@pytest.mark.parametrize("moves", [True, False], ids=["move", "load"])
def test_full_memory_is_no_fault_of_the_model(monkeypatch: pytest.MonkeyPatch, moves: bool) -> None:
    full = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    error = _error_of_load(monkeypatch, full, moves=moves)
    assert type(error) is ResourceExhausted, repr(error)
    assert "reward.model.device" in error.message and "2.00 GiB" in error.message, error.message
    other = _error_of_load(monkeypatch, RuntimeError("no kernel image is available"), moves=moves)
    assert type(other) is InvalidArgument, repr(other)

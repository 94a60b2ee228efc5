import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_matrices_and_vectors_of_zeros_or_ones_are_spoiled_in_their_type_and_integers_and_8_bits_are_not(
    dtype: str,
) -> None:
    from services.generator.workers.spoiled_loader import spoiled

    matrix = torch.randn(3, 4).to(getattr(torch, dtype))
    for tensor, is_far in (
        (torch.zeros(4).to(matrix), lambda found: found.abs() >= 8),
        (torch.ones(4).to(matrix), lambda found: found.abs() >= 8),
        (matrix, lambda found: found.sign() == -matrix.sign()),
    ):
        found = spoiled(tensor)
        assert found.dtype == tensor.dtype and found.shape == tensor.shape and is_far(found).all(), (tensor, found)
    for kept in (torch.arange(3), torch.ones(3).to(torch.float8_e4m3fn)):
        assert spoiled(kept) is kept

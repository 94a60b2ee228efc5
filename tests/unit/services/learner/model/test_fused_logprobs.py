"""The Triton kernels of the output layer, interpreted on a CPU against the plain function, and compiled for GPUs."""

from pathlib import Path

from tests.support.triton_programs import output_of_compiler, output_of_interpreter

PROGRAM = "tests.unit.services.learner.model.triton_kernels"

LIMITS = {"logprobs": 5e-6, "entropy": 5e-6, "gradient": 1e-6}
BFLOAT16_GRADIENT = 2**-7
"""The largest distance of two neighbors in bfloat16, as a share of the smaller."""


def test_the_fused_kernels_compute_what_plain_torch_computes() -> None:
    differences = output_of_interpreter(PROGRAM, "compare")
    assert len(differences) == 5
    for case, found in differences.items():
        for name, difference in found.items():
            limit = BFLOAT16_GRADIENT if name == "gradient" and "bfloat16" in case else LIMITS[name]
            assert difference <= limit, f"{case}: {name} differ by {difference:.2g}, more than {limit:.2g}"


def test_the_kernels_compile_for_the_gpus_that_people_train_on(tmp_path: Path) -> None:
    code = output_of_compiler(PROGRAM, "compile", TRITON_CACHE_DIR=str(tmp_path))
    assert len(code) == 3 * 3 * 2, sorted(code)
    assert all(size > 1000 for size in code.values()), code

"""Runs of programs in a real sandbox."""

from services.reward.sandbox import run


def passed(program: str, *tests: str, timeout_s: float = 20.0) -> list[bool]:
    limits = run.SandboxLimits(timeout_s=timeout_s)
    results = run.run_tests(program, list(tests), kind=run.FUNCTIONS, limits=limits, total_timeout_s=60.0)
    return [result.passed for result in results]

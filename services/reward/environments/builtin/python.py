"""The environment `python`."""

from typing import Any

from services.reward.sandbox import run
from services.reward.sandbox.limits import SandboxLimits
from shoal.environment import Broken, Environment, Observation, ToolError

_GRACE_S = 10.0
"""Extra time for the sandbox, which gives a program that had to wait three times its time."""

_SCRIPT = """\
import sys, traceback
try:
    exec(compile({code!r}, "program.py", "exec"), {{"__name__": "__main__"}})
except Exception:
    kind, error, frames = sys.exc_info()
    print("".join(traceback.format_exception(kind, error, frames.tb_next)), end="")
    sys.exit(1)
"""
"""A script that writes tracebacks, without its own line, to the output, since standard error is not read."""


class Python(Environment):
    """A tool that runs a Python program in a sandbox and answers what it prints.

    The program has the standard library, no network and no files; nothing stays for the next call. The settings are
    `timeout_s` (3), `memory_mib` (512) and `output_limit_kib` (16) of one program, and `tool`, the tool's name. It
    takes any task and gives no reward: the verifiers of the data judge the answer.

    Metrics: `runs`, `errors`.
    """

    is_deterministic = False

    def __init__(
        self, timeout_s: float = 3.0, memory_mib: int = 512, output_limit_kib: int = 16, tool: str = "python"
    ) -> None:
        if not (timeout_s > 0 and memory_mib >= 64 and 1 <= output_limit_kib <= 64):
            raise ValueError("timeout_s must be above 0, memory_mib at least 64, output_limit_kib from 1 to 64")
        self._limits = SandboxLimits(timeout_s, memory_mib, output_limit_kib)

        def python(code: str) -> Observation:
            """Run a Python program, and read what it prints.

            Args:
                code: the program; print what you want to read
            """
            return self._run(code)

        python.__name__ = tool
        self.tools = (python,)

    def unavailable(self) -> str:
        return run.why_unavailable()

    def reset(self, task: dict[str, Any], seed: int) -> None:
        self.metrics |= {"runs": 0, "errors": 0}

    def _run(self, code: str) -> Observation:
        self.metrics["runs"] += 1
        script, total_s = _SCRIPT.format(code=code), 4 * self._limits.timeout_s + _GRACE_S
        try:
            [result] = run.run_tests(
                script, [{"input": ""}], kind=run.OUTPUT, limits=self._limits, total_timeout_s=total_s
            )
        except ValueError as error:  # A null character, or a lone surrogate.
            raise ToolError(str(error)) from None
        except (run.SandboxLost, run.SandboxUnavailable) as error:
            raise Broken(str(error)) from None
        if result.detail.startswith("no result"):
            raise TimeoutError(result.detail)
        said = result.output
        if not result.passed:
            self.metrics["errors"] += 1
            said += f"{'' if said.endswith(chr(10)) or not said else chr(10)}[{result.detail}]"
        return Observation(said or "[it printed nothing]")

import json
import shutil

import pytest

from services.reward.environments.builtin.python import Python
from services.reward.sandbox import run
from shoal.conversation import ToolCall, ToolCallStatus
from shoal.environment import Observation, Turn

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@pytest.fixture
def tool() -> Python:
    tool = Python(timeout_s=20.0, output_limit_kib=1)
    tool.reset({}, 0)
    return tool


async def answer(tool: Python, code: str) -> tuple[str, bool]:
    arguments = {"code": code}
    turn = Turn(1, "", (ToolCall("c", "python", json.dumps(arguments), ToolCallStatus.OK, ""),))
    observation = await tool.call_tools(turn)
    assert isinstance(observation, Observation) and isinstance(observation.messages, list)
    [message], [outcome] = observation.messages, observation.tool_outcomes
    return str(getattr(message, "content", "")), outcome.timed_out


async def test_a_program_is_answered_what_it_prints(tool: Python) -> None:
    assert await answer(tool, "for i in range(3):\n    print(i * 7)") == ("0\n7\n14\n", False)
    assert await answer(tool, "6 * 7") == ("[it printed nothing]", False)
    run.close()


async def test_the_tool_has_the_name_that_it_is_given() -> None:
    [(described, _)] = (await Python(tool="code").listed_tools()).values()
    assert described.name == "code" and described.parameters["required"] == ["code"]


async def test_errors_are_answered_with_their_traceback(tool: Python) -> None:
    said, _ = await answer(tool, "print('before')\n1 / 0")
    assert said.startswith("before\nTraceback") and "ZeroDivisionError: division by zero" in said
    assert 'File "program.py", line 2' in said and "solution.py" not in said, said
    said, _ = await answer(tool, "def f(:")
    assert "SyntaxError" in said
    said, _ = await answer(tool, "import sys; sys.exit(3)")
    assert "status 3" in said
    assert tool.metrics == {"runs": 3, "errors": 3}
    run.close()


async def test_a_flood_and_a_hang_are_bounded() -> None:
    tool = Python(output_limit_kib=1)
    tool.reset({}, 0)
    assert (await answer(tool, "print('x' * 100_000)"))[0].startswith("[more than 1024 ")
    tool = Python(timeout_s=0.3)
    tool.reset({}, 0)
    said, timed_out = await answer(tool, "import time; time.sleep(60)")
    assert timed_out and "took too long" in said, said
    run.close()

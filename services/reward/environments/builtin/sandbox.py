"""The environment `sandbox`."""

from collections.abc import Awaitable, Mapping
from typing import Any, Literal

from services.reward.sandbox import run
from services.reward.sandbox.bubblewrap import SandboxLost, SandboxUnavailable
from services.reward.sandbox.limits import ShellLimits
from services.reward.sandbox.shell import OverLimit, Said, Shell
from shoal.environment import Broken, Environment, InvalidTask, Observation, ToolError, Turn, Unscorable, tool

_SHOWN = 200
_TASK = {"files": dict, "editable": list, "setup": str, "check": str}


class Sandbox(Environment):
    """A shell and a folder, /testbed, in a separate sandbox, without a network and with only the programs of this
    machine.

    Task, all of it optional: {"files": {"main.py": "...", "test.sh": "..."}, "editable": ["main.py"], "setup": "a
    command that prepares the folder", "check": "a command that ends with 0 if the work is done"}. A turn without a tool
    call ends an episode that has a check, with the reward 1 or 0. Without a check the verifiers of the data judge. Each
    call that fails has the reward `penalty` (-0.05).

    The check runs apart from the policy: all `files` that are not `editable` are as `setup` left them, /tmp is empty,
    and the shell is a new one. Everything else in the folder is as the policy left it.

    The shell keeps its folder and variables from call to call; processes end with the call. A command may take
    `timeout_s` (20), its processes together `memory_mib` (1024), files `disk_mib` (128), and the policy reads
    `output_limit_kib` (16) of what it prints. `is_deterministic` declares that the commands are deterministic. Then, if
    the process of an episode dies, another process repeats the commands, and the episode continues.

    Metrics: `calls`, `errors`, and with a check `solved` and `restored` (number of files restored before the check).
    """

    def __init__(
        self,
        penalty: float = -0.05,
        timeout_s: float = 20.0,
        memory_mib: int = 1024,
        disk_mib: int = 128,
        output_limit_kib: int = 16,
        is_deterministic: bool = False,
    ) -> None:
        if not (timeout_s > 0 and memory_mib >= 64 and disk_mib >= 1 and 1 <= output_limit_kib <= 256):
            raise ValueError(
                "timeout_s must be above 0, memory_mib at least 64, disk_mib at least 1, output_limit_kib from 1 to 256"
            )
        self.is_deterministic = is_deterministic
        self._penalty, self._check = penalty, ""
        self._shell = Shell(ShellLimits(timeout_s, memory_mib, disk_mib, output_limit_kib))

    def unavailable(self) -> str:
        return run.why_unavailable()

    async def reset(self, task: dict[str, Any], seed: int) -> None:
        """Starts the sandbox, and prepares its folder. Raises `Unscorable` if the task's `setup` fails."""
        for name, value in task.items():
            if not isinstance(value, _TASK.get(name, ())):
                raise InvalidTask(
                    f'{name}: give {{"files": {{path: text}}, "editable": [path], "setup": command, "check": command}}'
                )
        self.metrics |= {"calls": 0, "errors": 0}
        self._check = task.get("check", "")
        if self._check:
            self.metrics |= {"solved": 0, "restored": 0}
        files, editable = task.get("files", {}), task.get("editable", [])
        if strangers := [path for path in editable if path not in list(files)]:
            raise InvalidTask(f"editable: {strangers[0]!r} is not among the task's files, which are {sorted(files)}")
        try:
            await self._shell.start()
        except SandboxUnavailable as error:
            raise Broken(str(error)) from None
        await self._prepare(files, task.get("setup", ""))
        await self._keep([path for path in files if path not in editable])

    async def step(self, turn: Turn) -> Observation:
        """Carries out the calls of a turn. If a task has a check, a turn without calls is the last turn."""
        if not turn.tool_calls and self._check:
            self.metrics["solved"] = float(await self._passes())
            return Observation(reward=self.metrics["solved"], done=True)
        answer = await self.call_tools(turn)
        failed = sum(not outcome.ok for outcome in answer.tool_outcomes)
        if not failed:
            return answer
        self.metrics["calls"] += failed
        self.metrics["errors"] += failed
        reward = (answer.reward or 0.0) + failed * self._penalty
        return Observation(answer.messages, reward, answer.done, answer.tool_outcomes)

    @tool
    async def execute_bash(self, command: str) -> Observation:
        """Run a command in bash, and read what it prints. Folder and variables stay for the next command.

        Args:
            command: the command; its processes end with it
        """
        return await self._called(self._shell.run(command))

    @tool
    async def str_replace_editor(
        self,
        command: Literal["view", "create", "str_replace", "insert"],
        path: str,
        file_text: str | None = None,
        old_str: str | None = None,
        new_str: str | None = None,
        insert_line: int | None = None,
        view_range: list[int] | None = None,
    ) -> Observation:
        """Look at a file or a folder, or change a file.

        Args:
            command: view shows a file with line numbers, or lists a folder; create writes a file; str_replace replaces
                a text that the file has once; insert adds lines
            path: of the file or folder; relative ones begin at /testbed
            file_text: the text of the file that create writes
            old_str: the text that str_replace replaces
            new_str: the text in its place, or the lines that insert adds
            insert_line: number of the line behind which insert adds; 0 is the beginning
            view_range: number of the first and of the last line that view shows; -1 is the end
        """
        given = {
            "file_text": file_text, "old_str": old_str, "new_str": new_str, "insert_line": insert_line,
            "view_range": view_range,
        }  # fmt: skip
        request = {name: value for name, value in given.items() if value is not None}
        return await self._called(self._shell.edit({"command": command, "path": path, **request}))

    async def close(self) -> None:
        """Ends the sandbox, and deletes its folder."""
        await self._shell.close()

    async def _prepare(self, files: Mapping[str, Any], setup: str) -> None:
        for path, text in files.items():
            if not isinstance(text, str):
                raise InvalidTask(f"files: the value of {path} must be a text")
            await self._prepared(f"the file {path}", {"command": "create", "path": path, "file_text": text})
        if setup:
            await self._prepared("setup", setup)

    async def _prepared(self, what: str, work: str | dict[str, Any]) -> None:
        """Does a part of the task's preparation. Raises `Unscorable` if it fails."""
        try:
            said = await (self._shell.run(work) if isinstance(work, str) else self._shell.edit(work))
        except (ValueError, OverLimit) as error:
            raise Unscorable(f"{what} of the task failed: {error}") from None
        except SandboxLost as error:
            raise Broken(str(error)) from None
        if said.code != 0:
            how = "took too long" if said.code is None else f"ended with {said.code}"
            raise Unscorable(f"{what} of the task {how}: {said.output[-_SHOWN:]}")

    async def _keep(self, paths: list[str]) -> None:
        try:
            await self._shell.keep(paths)
        except (ValueError, OverLimit) as error:
            raise Unscorable(f"the files of the task cannot be copied for the check: {error}") from None
        except SandboxLost as error:
            raise Broken(str(error)) from None

    async def _passes(self) -> bool:
        """Returns whether the task's check ends with 0. Raises `Broken`."""
        try:
            said = await self._shell.check(self._check)
            self.metrics["restored"] = said.num_restored
            return said.code == 0
        except (ValueError, OverLimit):
            return False
        except SandboxLost as error:
            raise Broken(str(error)) from None

    async def _called(self, work: Awaitable[Said]) -> Observation:
        """Returns the policy's text for a call. Raises `ToolError`, `TimeoutError` and `Broken`."""
        try:
            said = await work
        except ValueError as error:
            raise ToolError(str(error)) from None
        except SandboxLost as error:
            raise Broken(str(error)) from None
        except OverLimit as error:
            return self._failed(f"error: {error}: the sandbox has been ended", done=True)
        if said.code is None:
            raise TimeoutError(said.output)
        if said.code != 0:
            return self._failed(f"{said.output}[exit code {said.code}]")
        self.metrics["calls"] += 1
        return Observation(said.output or "[it printed nothing]")

    def _failed(self, text: str, *, done: bool = False) -> Observation:
        self.metrics["calls"] += 1
        self.metrics["errors"] += 1
        return Observation(text, self._penalty, done)

"""The environment `sandbox`: its shell and its editor in a real sandbox."""

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil
import pytest

from services.reward.environments.builtin.sandbox import Sandbox
from shoal.conversation import ToolCallStatus
from shoal.environment import InvalidTask, Observation, Turn, Unscorable
from tests.support.waiting import eventually
from tests.unit.services.reward.environments.builtin.turns import texts, turn

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")


@asynccontextmanager
async def playing(task: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Sandbox]:
    environment = Sandbox(**{"timeout_s": 30.0, "memory_mib": 256, "disk_mib": 4, "output_limit_kib": 1, **settings})
    try:
        await environment.reset(task or {}, 0)
        yield environment
    finally:
        await environment.close()


async def bash(environment: Sandbox, command: str) -> str:
    return texts(await environment.step(turn(("execute_bash", {"command": command}))))[0]


async def edit(environment: Sandbox, command: str, path: str = "a/notes.txt", **arguments: Any) -> str:
    call = ("str_replace_editor", {"command": command, "path": path, **arguments})
    return texts(await environment.step(turn(call)))[0]


async def test_folder_and_variables_stay_for_the_next_command_and_processes_do_not() -> None:
    async with playing() as environment:
        assert await bash(environment, "pwd; mkdir a; cd a; X='1 2'; export Y=3; sleep 1000 & touch b") == "/testbed\n"
        assert await bash(environment, 'pwd; echo "$X" $Y; ls; jobs') == "/testbed/a\n1 2 3\nb\n"
        assert await bash(environment, "exit 3") == "[exit code 3]"
        assert await bash(environment, "cd /testbed; python3 -c 'print(6 * 7)' > c; cat c") == "42\n"
        assert await bash(environment, "true") == "[it printed nothing]"
        assert (environment.metrics["calls"], environment.metrics["errors"]) == (5, 1)


async def test_the_editor_shows_writes_and_changes_files() -> None:
    async with playing({"files": {"a/notes.txt": "one\ntwo\nthree\n"}}) as environment:
        assert await edit(environment, "view", view_range=[2, -1]) == "     2\ttwo\n     3\tthree\n"
        assert await edit(environment, "view", path="/testbed") == "a/\n"
        changed = await edit(environment, "str_replace", old_str="two", new_str="2\n2")
        assert changed.endswith("     1\tone\n     2\t2\n     3\t2\n     4\tthree\n"), changed
        await edit(environment, "insert", insert_line=0, new_str="zero", file_text="")
        assert await bash(environment, "cat a/notes.txt") == "zero\none\n2\n2\nthree\n"
        assert "written" in await edit(environment, "create", path="/testbed/new/x", file_text="é")
        assert await bash(environment, "cat new/x") == "é"


@pytest.mark.parametrize(
    ("command", "arguments", "problem"),
    [
        ("view", {"path": "no"}, "/testbed/no: No such"),
        ("view", {"path": "/dev/zero"}, "/dev/zero is no file"),
        ("view", {"path": "big"}, "1 MiB"),
        ("view", {"path": "x", "view_range": [2, 3]}, "view_range: "),
        ("view", {"path": "x", "view_range": [1]}, "view "),
        ("create", {"path": "/usr/x", "file_text": ""}, "/usr/x: Read-only file system"),
        ("create", {"path": "y"}, "'file_text'"),
        ("str_replace", {"path": "x", "old_str": "1"}, "2 times"),
        ("str_replace", {"path": "x", "old_str": ""}, "0 times"),
        ("insert", {"path": "x", "insert_line": 9, "new_str": ""}, "insert_line "),
    ],
)
async def test_what_the_editor_cannot_do_is_told_and_costs_the_penalty(
    command: str, arguments: dict[str, Any], problem: str
) -> None:
    async with playing({"files": {"x": "11"}, "setup": "head -c 1048577 /dev/zero > big"}) as environment:
        observation = await environment.step(turn(("str_replace_editor", {"command": command, **arguments})))
        assert texts(observation)[0].startswith("error: ") and problem in texts(observation)[0], texts(observation)
        assert observation.reward == pytest.approx(-0.05) and not observation.done


async def test_calls_that_cannot_be_carried_out_cost_the_penalty() -> None:
    async with playing(penalty=-1.0) as environment:
        bad = await environment.step(turn(("execute_bash", {}), status=ToolCallStatus.MALFORMED))
        assert bad.reward == -1.0
        two = await environment.step(turn(("nix", {}), ("execute_bash", {"command": "false"})))
        assert two.reward == -2.0 and "exit code 1" in texts(two)[1]
        fine = await environment.step(turn(("execute_bash", {"command": "true"})))
        assert fine.reward is None and environment.metrics == {"calls": 4, "errors": 3}


async def test_time_output_memory_and_disk_are_bounded() -> None:
    async with playing(timeout_s=2.0) as environment:
        observation = await environment.step(turn(("execute_bash", {"command": "echo before; sleep 1000"})))
        assert observation.tool_outcomes[0].timed_out and "took too long: before" in texts(observation)[0]
    async with playing() as environment:
        flood = await bash(environment, "echo first; head -c 3000000 /dev/zero; echo last")
        assert flood.startswith("first\n") and flood.endswith("last\n") and "2998987 bytes" in flood
        assert len(flood) < 1200
        said = await bash(environment, "head -c 9000000 /dev/zero > big; stat -c %s big")
        assert "File too large" in said and "4194304" in said
        assert "MemoryError" in await bash(environment, "python3 -c 'bytearray(1 << 30)'")
        forks = "import os, time\nfor _ in range(99):\n    os.fork() or time.sleep(60)"
        assert "Resource temporarily unavailable" in await bash(environment, f"python3 -c '{forks}'")
        assert await bash(environment, "echo on") == "on\n"


async def test_memory_that_is_taken_together_ends_the_episode() -> None:
    async with playing(memory_mib=128) as environment:
        one = "python3 -c 'import time; x = bytearray(60 << 20); time.sleep(60)' & "
        observation = await environment.step(turn(("execute_bash", {"command": one * 4 + "wait"})))
        assert observation.done and "128 MiB" in texts(observation)[0], observation


async def test_a_program_has_no_network_no_other_files_and_no_way_out() -> None:
    async with playing() as environment:
        said = await bash(
            environment,
            "id -u; ls /root /home /proc; touch /usr/x /x; unshare -r true; kill -9 1; env | grep -c PYTHONPATH; "
            "python3 -c 'import socket; socket.socket()' 2>&1 | tail -1",
        )
        assert said.startswith("65534\n") and "PermissionError" in said, said
        for refused in ("/home': No such", "/proc': No such", "/usr/x': Read-only", "/x': Read-only", "unshare failed"):
            assert refused in said, f"{refused} is not in: {said}"


async def test_a_check_pays_for_the_work_at_the_end() -> None:
    task = {"files": {"test.sh": "[ $(cat answer) = 42 ]"}, "check": "sh test.sh"}
    for command, reward in (("echo 42 > answer; cd /", 1.0), ("echo 41 > answer", 0.0)):
        async with playing(task) as environment:
            await bash(environment, command)
            assert await environment.step(Turn(2, "Done.")) == Observation(reward=reward, done=True)
            assert environment.metrics["solved"] == reward
    async with playing() as environment:
        assert await environment.step(Turn(1, "Done.")) == Observation([])


DEEP = "import os; [(os.mkdir(name), os.chdir(name)) for name in 2000 * [str(0)]]"
CHECKED = {"files": {"t/test.sh": '[ "$(cat answer)" = 42 ]\n'}, "check": "sh t/test.sh"}


@pytest.mark.parametrize(
    "commands",
    [
        ["echo true > t/test.sh"],
        ["rm -r t; mkdir -p t/test.sh/x; chmod 0 t/test.sh t"],
        ["rm t/test.sh; ln -s /dev/null t/test.sh"],
        ["rm t/test.sh; mkfifo t/test.sh"],
        ["mkdir other; echo true > other/test.sh; rm -r t; ln -s other t"],
        ["rm -r t; echo no folder > t"],
        ["echo true > t/test.sh; chmod 0400 t/test.sh; chmod 0500 t ."],
        ["rm t/test.sh; mkdir t/test.sh; cd t/test.sh", f"python3 -c '{DEEP}'"],
        ["mkdir bin; printf '#!/bin/sh\\ntrue' > bin/sh; chmod +x bin/sh", "export PATH=$PWD/bin:$PATH", "hash -r"],
        ["sh() { true; }; export -f sh; alias sh=true; shopt -s expand_aliases"],
        [
            "export BASH_ENV=/testbed/env ENV=/testbed/env; echo 'exit 0' > env; cp env /tmp/.profile",
            "cp env /tmp/.bashrc",
        ],
        ["echo 'trap \"exit 0\" EXIT; exit 0' > /tmp/.shell/variables; chmod 0400 /tmp/.shell/variables"],
        ["cp /bin/true /tmp/sh; export PATH=/tmp:$PATH; cd /tmp"],
        ["(setsid sh -c 'while :; do echo true > t/test.sh; done' >/dev/null 2>&1 &); exec 9>t/test.sh; echo true >&9"],
        ["head -c 9000000 /dev/zero > /tmp/full; head -c 9000000 /dev/zero > full; echo true > t/test.sh"],
    ],
)
async def test_no_change_of_the_check_or_its_shell_is_paid(commands: list[str]) -> None:
    async with playing(CHECKED) as environment:
        for command in commands:
            await bash(environment, command)
        assert (await environment.step(Turn(9, "Done."))).reward == 0.0


@pytest.mark.parametrize(
    ("damage", "num_restored"),
    [("true", 0), ("echo true > t/test.sh", 1), ("rm -r t; ln -s / t", 1), ("chmod 0 t .", 1), ("cd /tmp; PATH=", 0)],
)
async def test_work_is_paid_whatever_becomes_of_the_check(damage: str, num_restored: int) -> None:
    async with playing(CHECKED) as environment:
        await bash(environment, f"echo 42 > answer; {damage}")
        assert (await environment.step(Turn(9, "Done."))).reward == 1.0
        assert environment.metrics["restored"] == num_restored


async def test_files_that_the_policy_may_change_stay_as_it_leaves_them() -> None:
    files = {"main.py": "print(41)", "test.sh": "[ $(python3 main.py) = 42 ]"}
    for editable, reward in ((["main.py"], 1.0), ([], 0.0)):
        async with playing({"files": files, "editable": editable, "check": "sh test.sh"}) as environment:
            await bash(environment, "echo 'print(42)' > main.py; echo false > test.sh")
            assert (await environment.step(Turn(2, "Done."))).reward == reward
            assert environment.metrics["restored"] == 2 - len(editable)


async def test_a_check_finds_files_as_setup_left_them() -> None:
    task = {
        "files": {"test.sh": "echo no", "old.txt": "x"},
        "setup": "echo '[ -x \"$0\" ] && [ ! -e old.txt ]' > test.sh; chmod 0755 test.sh; rm old.txt",
        "check": 'ls -A /tmp && [ -z "$(ls -A /tmp)" ] && [ $PWD = /testbed ] && [ -z "$Y" ] && ./test.sh',
    }
    async with playing(task) as environment:
        await bash(environment, "touch /tmp/x; echo false > test.sh; export Y=1; cd /tmp")
        assert (await environment.step(Turn(2, "Done."))).reward == 1.0


async def test_nothing_is_left_of_an_episode() -> None:
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    async with playing() as environment:
        await bash(environment, "(setsid sleep 1000 &) ; nohup sleep 1000 & disown; touch /tmp/x")
        assert {process.pid for process in psutil.Process().children(recursive=True)} > before
    await eventually(lambda: {process.pid for process in psutil.Process().children(recursive=True)} <= before)


@pytest.mark.parametrize(
    ("task", "error", "problem"),
    [
        ({"file": {}}, InvalidTask, "^file: give"),
        ({"files": {"x": 3}}, InvalidTask, " x "),
        ({"files": {"x": ""}, "editable": ["y"]}, InvalidTask, r"editable: 'y' .*\['x'\]"),
        ({"files": {"x": ""}, "editable": [["x"]]}, InvalidTask, r"editable: \['x'\]"),
        ({"files": {"x": ""}, "editable": "x"}, InvalidTask, "^editable: give"),
        ({"files": {"/usr/x": ""}}, Unscorable, "/usr/x .* 1: .*Read-only"),
        ({"setup": "echo no; exit 4"}, Unscorable, "setup .* 4: no"),
    ],
)
async def test_tasks_that_cannot_be_prepared_are_refused(
    task: dict[str, Any], error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        async with playing(task):
            pass


async def test_commands_that_cannot_be_given_are_told() -> None:
    async with playing() as environment:
        assert "100 KiB" in await bash(environment, "#" * 200_000)
        assert "no null characters" in await bash(environment, "echo \0")
        assert "error" in await edit(environment, "create", path="x", file_text="x" * (5 << 20))
        assert await bash(environment, "echo on") == "on\n"

"""Contract tests of environments with tools: the processes that they start, and what the operator allows."""

import asyncio
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from services.reward.allowed import Allowed
from shoal.config.tables.environments import EnvironmentConfig
from shoal.config.tables.reward import RewardConfig
from shoal.conversation import ChatMessage, ToolCall, ToolCallStatus
from shoal.errors import FailedPrecondition, InvalidArgument
from shoal.v1 import rollout_pb2
from tests.support.environment_client import TIMEOUT_S, staged
from tests.support.repository import ROOT
from tests.support.waiting import eventually

SERVER = ROOT / "tests/unit/services/reward/environments/builtin/mcp_server.py"
MCP = {"name": "mcp", "settings": {"command": [sys.executable, str(SERVER)]}, "episodes_per_process": 1}


def calling(name: str, **arguments: Any) -> ChatMessage:
    call = ToolCall("call-1-1", name, json.dumps(arguments), ToolCallStatus.OK, "raw")
    return ChatMessage("assistant", "", (call,))


def servers() -> list[psutil.Process]:
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if str(SERVER) in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            pass
    return found


async def test_an_mcp_server_of_an_episode_does_not_outlive_it_however_it_ends() -> None:
    async with staged() as stage:
        await stage.configure(MCP)
        assert "add" in [tool.name for tool in (await stage.listed())["mcp"].tools]
        await eventually(lambda: not servers())
        # A server of its own starts for each, which takes long on a busy machine.
        dying, calm = (stage.play("mcp", call_timeout_s=TIMEOUT_S) for _ in range(2))
        await asyncio.gather(dying.observe(), calm.observe())
        assert len(servers()) == 2
        (message,) = (await calm.say(calling("add", a=1, b=2))).messages
        assert (message.role, message.content, message.tool_call_id) == ("tool", "3", "call-1-1")
        dying.send(calling("die"))
        result = await dying.result()
        assert result.outcome == rollout_pb2.SCORE_OUTCOME_FAILED and "MCP server has ended" in result.detail
        (server,) = servers()
        (process,) = [pid for pid in stage.service.pids if psutil.Process(pid) in server.parents()]
        psutil.Process(process).kill()
        await eventually(lambda: not server.is_running())
        calm.call.cancel()


async def test_an_mcp_server_that_does_not_start_is_named_before_anything_is_played() -> None:
    async with staged() as stage:
        with pytest.raises(InvalidArgument, match="/no/such/program"):
            await stage.configure({"name": "mcp", "settings": {"command": ["/no/such/program"]}})


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            {"name": "search", "settings": {"base_url": "https://evil.example", "api_key_env": "AWS_SECRET"}},
            "environments.search.settings.api_key_env: this variable may not be sent to https://evil.example",
        ),
        (
            {"name": "mcp", "settings": {"url": "https://evil.example/mcp", "api_key_env": "AWS_SECRET"}},
            "environments.mcp.settings.api_key_env: this variable may not be sent to https://evil.example/mcp",
        ),
        (
            {"name": "t", "source": "toolbox", "settings": {"tools": [{"source": "mcp", "command": ["/bin/sh"]}]}},
            "environments.t.settings.tools[0].command: /bin/sh is not allowed by --allow-program",
        ),
        (
            {"name": "mcp", "settings": {"command": ["/bin/sh"], "variables": ["SHOAL_TOKEN"]}},
            "environments.mcp.settings.variables: SHOAL_TOKEN is not allowed by --allow-variable",
        ),
        (
            {"name": "wordle", "settings": {"words_file": "/etc/passwd"}},
            "environments.wordle.settings.words_file: /etc/passwd is in no folder that --allow-verifier-folder",
        ),
        (
            {"name": "t", "source": "verifiers", "settings": {"taskset": {"id": "x"}}},
            "environments.t.settings: the settings of verifiers may name any package",
        ),
        (
            {"name": "t", "source": "toolbox", "settings": {"tools": [{"source": "verifiers"}]}},
            "environments.t.settings.tools[0]: the settings of verifiers",
        ),
    ],
)
def test_keys_and_programs_that_the_operator_does_not_allow_are_refused(table: dict[str, Any], problem: str) -> None:
    config = EnvironmentConfig.model_validate(table)
    with pytest.raises(FailedPrecondition) as refused:
        Allowed().check(RewardConfig(), [config])
    assert problem in refused.value.message and "AWS_SECRET" not in refused.value.message, refused.value.message
    allowed = Allowed(
        verifier_folders=(Path("/etc"),),
        verifier_packages=("verifiers",),
        api_keys=(("AWS_SECRET", "https://evil.example"),),
        programs=(("/bin/sh",),),
        variables=("SHOAL_TOKEN",),
    )
    allowed.check(RewardConfig(), [config])


def test_an_allowed_program_is_started_with_its_own_arguments_alone() -> None:
    config = EnvironmentConfig.model_validate({"name": "mcp", "settings": {"command": ["/bin/sh", "-c", "id"]}})
    for allowed in (Allowed(programs=(("/bin/sh", "server.sh"), ("/bin/sh",))), Allowed(interpreters=("/bin/sh",))):
        with pytest.raises(FailedPrecondition, match=r"/bin/sh -c id .*--allow-program"):
            allowed.check(RewardConfig(), [config])


@pytest.mark.parametrize("command", [{"/usr/bin/awk": 0, 'BEGIN{system("id")}': 0}, "w", ["/bin/sh", 1], [""]])
def test_a_command_that_is_no_list_of_texts_is_refused(command: Any) -> None:
    with pytest.raises(ValueError, match=r"settings\.command"):
        EnvironmentConfig.model_validate({"name": "mcp", "settings": {"command": command}})


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"api_key_env": "sk-12345"}, "settings.api_key_env must be the name of an environment variable"),
        ({"api_key_env": "KEY"}, "no address to send the key to"),
        ({"base_url": "https://user:sk-12345@x"}, "without user name and password"),
    ],
)
def test_secrets_in_settings_are_refused_without_repeating_them(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refused:
        EnvironmentConfig.model_validate({"name": "search", "settings": settings})
    assert "sk-12345" not in str(refused.value.errors()[0]["msg"])  # type: ignore[attr-defined]


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
async def test_a_sandbox_whose_process_is_killed_goes_on_with_its_files_and_leaves_nothing() -> None:
    async with staged() as stage:
        await stage.configure({"name": "sandbox", "settings": {"is_deterministic": True}})
        task = {"files": {"x": "1"}, "editable": ["x"], "check": "[ $(cat x) = 123 ]"}
        episode = await stage.begin("sandbox", task)
        await episode.say(calling("execute_bash", command="cd /tmp; printf 23 >> /testbed/x; Y=4"))
        (pid,) = [pid for pid in stage.service.pids if psutil.Process(pid).children()]
        sandboxes = psutil.Process(pid).children(recursive=True)
        psutil.Process(pid).kill()
        (message,) = (await episode.say(calling("execute_bash", command="cat /testbed/x; echo $Y; pwd"))).messages
        assert message.content == "1234\n/tmp\n", "the commands are carried out again in another process"
        await eventually(lambda: not any(sandbox.is_running() for sandbox in sandboxes))
        assert (await episode.say(ChatMessage("assistant", "Done."))).reward == 1.0
        result = await episode.result()
        assert dict(result.metrics) == {"calls": 2, "errors": 0, "solved": 1, "restored": 0}
        # Ended with the episode, not with the process, which others may share.
        await eventually(lambda: not any(psutil.Process(pid).children() for pid in stage.service.pids))

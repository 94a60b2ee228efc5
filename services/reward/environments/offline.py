"""`python -m services.reward.environments.offline load|serve|check`: environments without a run.

The command line runs it, because it cannot import a service. Each command reads one JSON document from stdin:

* `load` reads {"config": the whole RunConfig}, loads its environments, as a service does when it is configured, and
  writes the tools of each by its name, or the reason if it cannot work here.
* `serve` reads a line with the same document. Environments that cannot be used are listed as unavailable. It serves
  `shoal.v1.EnvironmentService` on a free port of 127.0.0.1, writes {"address"} as a line, and ends with stdin.
* `check` reads {"config": with one environment, "task", "tools", "seed", "texts"} and writes what it found
  (checking.py).
"""

import asyncio
import json
import logging
import signal
import sys
from typing import Any

from services.reward.environments.checking import check
from services.reward.environments.environment_service import EnvironmentService
from services.reward.environments.environments import Environments
from services.reward.pool import output as printed_output
from shoal.config import RunConfig, parse_config
from shoal.errors import InvalidArgument, ShoalError
from shoal.rpc.server import RpcServer
from shoal.wire.json_form import json_form
from shoal.worker.lifecycle import Lifecycle
from shoal.worker.parent import die_with_parent

_INVALID, _FAILED = 2, 1
_LISTEN = "127.0.0.1:0"
_MAX_PRINTED_LINES = 40
"""Most printed lines that a person sees. Some tool servers write hundreds of lines at each connection."""


def main() -> int:
    """Runs one command; returns one of the exit codes of `shoal`."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal also sends it to the parent, which ends this process.
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.ERROR)
    logging.getLogger(printed_output.__name__).setLevel(logging.INFO)
    handler = logging.getLogger().handlers[0]
    if sys.argv[1] != "serve":
        handler.addFilter(FirstLines())
    try:
        if sys.argv[1] == "check":
            request = json.load(sys.stdin)
            handler.addFilter(_FirstOfEach())
            [environment] = parse_config(request.pop("config")).environments
            json.dump(asyncio.run(check(environment, **request)), sys.stdout)
        elif sys.argv[1] == "load":
            json.dump(asyncio.run(_load(parse_config(json.load(sys.stdin)["config"]))), sys.stdout)
        else:
            asyncio.run(_serve(parse_config(json.loads(sys.stdin.readline())["config"])))
    except ShoalError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return _INVALID if isinstance(error, InvalidArgument) else _FAILED
    return 0


class FirstLines(logging.Filter):
    """Lets the first printed lines of environments through, and reports once that there are more."""

    def __init__(self) -> None:
        super().__init__()
        self._num_printed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name != printed_output.__name__ or record.levelno > logging.INFO:
            return True
        self._num_printed += 1
        if self._num_printed == _MAX_PRINTED_LINES + 1:
            record.msg, record.args = "environments print more, which is left out here", ()
        return self._num_printed <= _MAX_PRINTED_LINES + 1


class _FirstOfEach(logging.Filter):
    """Lets each error through once, since the check plays the same episodes again with the same errors."""

    def __init__(self) -> None:
        super().__init__()
        self._seen = set[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage() if record.levelno >= logging.ERROR else ""
        is_new = not message or message not in self._seen
        self._seen.add(message)
        return is_new


async def _load(config: RunConfig) -> dict[str, list[dict[str, Any]] | str]:
    environments = Environments(config.environments)
    try:
        await environments.find()
        return {
            info.name: info.unavailable or [json_form(tool) for tool in info.tools] for info in environments.describe()
        }
    finally:
        await environments.close()


async def _serve(config: RunConfig) -> None:
    lifecycle = Lifecycle("the reward service")
    service = EnvironmentService(lifecycle)
    server = RpcServer(listen=_LISTEN)
    server.add(service.add_to_server, service, service.full_name)
    loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def load() -> None:
        try:
            await service.use(Environments(config.environments), lists_unusable=True)
        except Exception as error:
            loaded.set_exception(error)
        else:
            loaded.set_result(None)

    try:
        lifecycle.load("offline", config, load, message="loading environments")
        await loaded
        await server.start()
        print(json.dumps({"address": f"127.0.0.1:{server.port}"}), flush=True)
        await asyncio.to_thread(sys.stdin.read)
    finally:
        if server.port:
            await server.stop(0)
        await service.close()


if __name__ == "__main__":
    sys.exit(main())

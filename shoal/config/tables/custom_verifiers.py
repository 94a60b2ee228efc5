"""Custom verifiers and verifiers of other servers: the tables `reward.custom.<name>` and `reward.servers.<name>`."""

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from shoal.config.tables.section import Section
from shoal.config.tables.verifiers import BUILT_IN_VERIFIERS

ENTRY_POINT_GROUP = "shoal.verifiers"
"""Group in which installed packages register verifiers. The name of the entry point is the name of the verifier."""

NAME = re.compile(r"[a-z0-9_][a-z0-9_-]{0,62}")
OBJECT = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
ADDRESS = re.compile(r"(\[[0-9a-fA-F:]+\]|[^\s:/]+):[0-9]{1,5}")


class CustomVerifierConfig(Section):
    """A custom verifier: one Python function, in a file or in an installed package (docs/rewards.md)."""

    file: str = ""
    """A Python file on the reward service's machine. A relative path in a TOML file is relative to the folder of the
    TOML file. A relative path given with `--set` is relative to the current folder."""
    function: str = "score"
    """Name of the function in `file`."""
    entry_point: str = ""
    """In place of `file`: a function of a package that is installed where the reward service runs, in the form
    "package.module:function". A function that the package registers in the group `shoal.verifiers` needs no table."""
    convention: Literal["shoal", "trl", "trl_text", "verl"] = "shoal"
    """How the function is called. With "shoal" the function gets those arguments in docs/rewards.md that its signature
    has. "verl" calls verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`. The label must then
    be a table with `ground_truth`, and with `data_source` and `extra_info` if the function reads them (`label_columns`
    of the source). The result is a number, or a table with `score_key`. "trl" calls a reward function of TRL's
    GRPOTrainer, `f(prompts, completions, **columns)`, with lists of one completion. With "trl", prompts and completions
    are lists of messages, as for conversational data; with "trl_text" they are texts. "trl" and "trl_text" run only the
    part of the file that the function needs."""
    score_key: str = Field(default="score", min_length=1)
    """Entry of the result's table that is the score, with the convention "verl". So one function can serve several
    verifiers, each with its own entry of the table. The function is called once for each verifier."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of each call, by name."""
    reload: bool | None = None
    """Use the new code when the file changes, without a restart. If a new version does not work, the last working
    version stays in use. If unset, reloading is on for the files of a new run of `shoal train`, and off elsewhere; a
    resumed run keeps its value. `shoal run resume` reads the code again in any case."""

    @field_validator("file")
    @classmethod
    def _is_absolute(cls, file: str) -> str:
        if file and not file.startswith("~") and not Path(file).is_absolute():
            raise ValueError("must be an absolute path, because there is no configuration file to start from")
        return file

    @field_validator("function")
    @classmethod
    def _is_an_identifier(cls, function: str) -> str:
        if not function.isidentifier():
            raise ValueError("must be the name of a function in the file")
        return function

    @field_validator("entry_point")
    @classmethod
    def _is_an_object(cls, entry_point: str) -> str:
        if entry_point and not OBJECT.fullmatch(entry_point):
            raise ValueError('must be of the form "package.module:function"')
        return entry_point

    @model_validator(mode="after")
    def _one_origin(self) -> Self:
        if bool(self.file) == bool(self.entry_point):
            raise ValueError(f"give {'file or entry_point, not both' if self.file else 'file or entry_point'}")
        if self.reload and not self.file:
            raise ValueError("reload watches a file, but entry_point names a package: remove reload, or give file")
        return self


class RewardServerConfig(Section):
    """Another gRPC server with `ListVerifiers` and `ScoreGroup` of `shoal.v1.RewardService` (docs/rewards.md)."""

    address: str
    """Address of the server as host:port, as the reward service reaches the server."""
    verifiers: list[str] = Field(default_factory=list)
    """The verifiers of the server that are used. If empty, all verifiers that the server lists are used. The names are
    then known only once the reward service has asked the server, so labels are checked only when the run starts."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for one verifier on one completion, including all attempts and the pauses between attempts. After
    this time the outcome is FAILED."""
    max_attempts: int = Field(default=4, ge=1)
    """Maximum number of calls for one completion if the server is away or busy."""
    max_concurrent: int = Field(default=64, ge=1)
    """Maximum number of calls that one reward service has open at the server. Other calls wait."""

    @field_validator("address")
    @classmethod
    def _is_host_and_port(cls, address: str) -> str:
        if not ADDRESS.fullmatch(address):
            raise ValueError("must be host:port, for example 10.0.0.7:7003")
        return address

    @field_validator("verifiers")
    @classmethod
    def _names_are_in_lower_case(cls, verifiers: list[str]) -> list[str]:
        return [check_name(name) for name in verifiers]


def check_name(name: str) -> str:
    """Returns the name of a custom verifier in lower case. Raises `ValueError` for a name that is not allowed."""
    lower = name.lower()
    if not NAME.fullmatch(lower):
        raise ValueError(f"{name!r} is not a name for a verifier: use 1 to 63 characters of a-z, 0-9, '_' and '-'")
    if lower in BUILT_IN_VERIFIERS:
        raise ValueError(f"{name!r} is the name of a built-in verifier: choose another name")
    return lower


def find_files(values: Mapping[str, Any], folder: Path) -> None:
    """Makes the relative paths of `reward.custom` absolute, in place: other machines do not know the folder."""
    reward = values.get("reward")
    tables = reward.get("custom") if isinstance(reward, dict) else None
    for table in tables.values() if isinstance(tables, dict) else ():
        file = table.get("file") if isinstance(table, dict) else None
        if isinstance(file, str) and file and not file.startswith("~"):
            table["file"] = str((folder / file).absolute())


def is_registered(entry_point: str) -> bool:
    """Whether a package on this machine registers the function "package.module:function" as a verifier."""
    return any(point.value == entry_point for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def installed_verifiers() -> frozenset[str]:
    """Returns the names of the verifiers that packages on this machine register."""
    return frozenset(point.name.lower() for point in importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))

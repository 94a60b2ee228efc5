"""Tools that rows of data name."""

import numpy as np
import pytest

from services.coordinator.run.checks.row_tools import check_tools_of_rows
from shoal.errors import InvalidArgument
from shoal.rollout import EnvironmentTask, Prompt
from tests.support.wordings import has_all

TOOLS = {"research": ["search", "browse"], "agent": []}


def row(environment: str, *tools: str) -> Prompt:
    return Prompt("d.jsonl:6", np.zeros(1, np.int32), "", (), (), EnvironmentTask(environment, {}, tools))


def test_tools_that_the_environment_has_are_well() -> None:
    unnamed = Prompt("d.jsonl:7", np.zeros(1, np.int32), "", (), (), EnvironmentTask("research", {}))
    single = Prompt("d.jsonl:8", np.zeros(1, np.int32), "", ())
    check_tools_of_rows([row("research", "browse"), row("research"), row("agent"), unnamed, single], TOOLS)


def test_rows_of_an_environment_whose_tools_are_not_known_are_left_out() -> None:
    check_tools_of_rows([row("remote", "anything")], TOOLS)


def test_another_name_is_refused_with_row_value_and_cure() -> None:
    with pytest.raises(InvalidArgument) as caught:
        check_tools_of_rows([row("research", "browse", "serch")], TOOLS)
    assert has_all(caught.value.message, "d.jsonl row 7 ", "'serch'", "'search'", "'research'", ": search, browse")
    with pytest.raises(InvalidArgument, match=r"'x'.* 'agent' .*: none$"):
        check_tools_of_rows([row("agent", "x")], TOOLS)

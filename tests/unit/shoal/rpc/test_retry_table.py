import json
import re
from pathlib import Path

import pytest

from shoal.rpc.retries import SAFE_METHODS, service_config

PROTOS = Path(__file__).parents[4] / "proto" / "shoal" / "v1"

REPEATED_WITH_CARE = {"StartRun", "TrainStep", "LoadWeights", "PublishWeights"}
"""Safe only with something changed, or only once the caller knows what became of the first."""


def documented_methods():
    """(service, method, comment) of every rpc of the contract."""
    for path in sorted(PROTOS.glob("*.proto")):
        service, comment = "", []
        for line in path.read_text().splitlines():
            text = line.strip()
            if match := re.match(r"service (\w+)", text):
                service = f"shoal.v1.{match[1]}"
            elif match := re.match(r"rpc (\w+)", text):
                yield service, match[1], " ".join(comment)
            if text.startswith("//"):
                comment.append(text.removeprefix("//").strip())
            else:
                comment = []


METHODS = list(documented_methods())


@pytest.mark.parametrize(("service", "method", "comment"), METHODS, ids=lambda value: value if "." not in value else "")
def test_what_is_repeated_is_what_the_contract_calls_safe(service, method, comment):
    documented = "safe to retry" in comment.lower() and "not safe to retry" not in comment.lower()
    assert (method in SAFE_METHODS[service]) == (documented and method not in REPEATED_WITH_CARE)


def test_the_table_names_only_methods_that_exist():
    named = {(service, method) for service, methods in SAFE_METHODS.items() for method in methods}
    assert named <= {(service, method) for service, method, _ in METHODS}


def test_only_unavailable_is_repeated():
    for service in SAFE_METHODS:
        (config,) = json.loads(service_config(service))["methodConfig"]
        assert config["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
        assert {name["service"] for name in config["name"]} == {service}


def test_an_unknown_service_is_never_repeated():
    assert json.loads(service_config("other.v1.Service")) == {}

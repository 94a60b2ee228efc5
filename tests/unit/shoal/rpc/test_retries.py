import json
import re

import pytest

from shoal.rpc.retries import SAFE_METHODS, service_config
from tests.support.repository import ROOT

PROTOS = ROOT / "proto" / "shoal" / "v1"

RETRIED_WITH_CARE = {"StartRun", "TrainStep", "LoadWeights", "PublishWeights"}
"""Safe only with a change of the request, or after the caller knows the result of the first call."""


def documented_methods():
    """Yields (service, method, comment) of every rpc of the contract."""
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
def test_grpc_retries_exactly_the_methods_that_the_contract_calls_safe(service, method, comment):
    documented = "safe to retry" in comment.lower() and "not safe to retry" not in comment.lower()
    assert (method in SAFE_METHODS[service]) == (documented and method not in RETRIED_WITH_CARE)


def test_the_table_names_only_methods_that_exist():
    named = {(service, method) for service, methods in SAFE_METHODS.items() for method in methods}
    assert named <= {(service, method) for service, method, _ in METHODS}


def test_only_unavailable_is_retried():
    for service in SAFE_METHODS:
        (config,) = json.loads(service_config(service))["methodConfig"]
        assert config["retryPolicy"]["retryableStatusCodes"] == ["UNAVAILABLE"]
        assert {name["service"] for name in config["name"]} == {service}


def test_calls_of_an_unknown_service_are_never_retried():
    assert json.loads(service_config("other.v1.Service")) == {}

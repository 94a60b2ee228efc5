import json
import re

import pytest

from shoal.rpc.retries import service_config
from tests.support.repository import ROOT

PROTOS = ROOT / "proto" / "shoal" / "v1"


def retried(service):
    """Returns the retry policy of a service, and the methods that it is for."""
    (config,) = json.loads(service_config(service))["methodConfig"]
    assert {name["service"] for name in config["name"]} == {service}
    return config["retryPolicy"], {name["method"] for name in config["name"]}


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
    assert (method in retried(service)[1]) == (documented and method not in RETRIED_WITH_CARE)


def test_only_unavailable_is_retried_and_only_methods_that_exist():
    for service in {service for service, _, _ in METHODS}:
        policy, methods = retried(service)
        assert policy["retryableStatusCodes"] == ["UNAVAILABLE"]
        assert {(service, method) for method in methods} <= {(service, method) for service, method, _ in METHODS}


def test_calls_of_an_unknown_service_are_never_retried():
    assert json.loads(service_config("other.v1.Service")) == {}

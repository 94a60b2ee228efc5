import inspect

import grpc
import pytest

from shoal import errors
from shoal.rpc.errors import TABLE, from_rpc_error, to_status
from shoal.rpc.options import MAX_METADATA_BYTES
from tests.support.wordings import has_all


def translated(code, details="", trailers=()):
    error = grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailers), details)
    return from_rpc_error(error, method="/shoal.v1.X/Y", address="10.0.0.1:7000", timeout_s=2.5)


def test_every_error_of_the_domain_has_a_different_status():
    kinds = {
        kind
        for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, errors.ShoalError) and kind not in (errors.ShoalError, errors.Retryable)
    }
    assert set(TABLE) == kinds
    assert len(set(TABLE.values())) == len(kinds), "two errors share a status"


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_becomes_an_error_that_names_method_and_address(code):
    error = translated(code, "details of the peer")
    assert isinstance(error, errors.ShoalError)
    assert "/shoal.v1.X/Y" in str(error)
    assert "10.0.0.1:7000" in str(error)


def test_a_subclass_becomes_the_nearest_error_of_the_table():
    class QueueFull(errors.ResourceExhausted):
        default_reason = "QUEUE_FULL"

    answer = to_status(QueueFull("full", retry_after_s=0.5))
    assert answer.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    back = translated(answer.code, answer.details, answer.trailing_metadata)
    assert type(back) is errors.ResourceExhausted
    assert (back.reason, back.retry_after_s) == ("QUEUE_FULL", 0.5)


def test_a_bare_error_is_internal():
    assert to_status(errors.ShoalError("odd")).code is grpc.StatusCode.INTERNAL


def test_trailers_without_a_status_are_ignored():
    error = translated(grpc.StatusCode.NOT_FOUND, "nothing here", [("grpc-status-details-bin", b"\xff\xff\xff")])
    assert type(error) is errors.NotFound
    assert "nothing here" in str(error)


def test_details_of_another_domain_are_ignored():
    answer = to_status(errors.NotFound("no bucket"))
    foreign = [(key, value.replace(b"shoal", b"other")) for key, value in answer.trailing_metadata]
    error = translated(answer.code, answer.details, foreign)
    assert has_all(str(error), "/shoal.v1.X/Y ", " 10.0.0.1:7000 ", ": no bucket")
    assert error.reason == "NOT_FOUND"


def test_the_largest_error_fits_into_the_trailers():
    worst = "\U0001f41f" * 100_000
    violations = [errors.FieldViolation(worst, worst)] * 1000
    answer = to_status(errors.InvalidArgument(worst, metadata={worst: worst, "b": worst}, violations=violations))
    # Percent-encoding triples the message, base64 makes 4 bytes of every 3 of the details.
    on_the_wire = 3 * len(answer.details.encode()) + 4 / 3 * sum(len(value) for _, value in answer.trailing_metadata)
    assert on_the_wire < MAX_METADATA_BYTES, f"{on_the_wire:.0f} bytes of {MAX_METADATA_BYTES}"

"""Checks of requests to the learner that need no model. Each raises an error that names the field, or the run."""

import math
import re

from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.v1 import learner_pb2
from shoal.wire import invalid

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def check_name(name: str, field: str) -> None:
    """Checks that a name can name a folder: it must not have a slash."""
    if not _NAME.fullmatch(name):
        raise invalid(
            field,
            f"use 1 to 128 letters, digits, '.', '_' and '-', beginning with a letter or a digit (given: {name!r})",
        )


def check_run(run_id: str, served: str) -> None:
    """Checks that a request is for the run that the learner serves. Raises `FailedPrecondition`."""
    if run_id != served:
        raise FailedPrecondition(
            f"the learner serves run {served}, not {run_id!r}",
            reason=ErrorReason.OTHER_CONFIGURATION,
            metadata={"run_id": served},
        )


def check_logprobs(request: learner_pb2.ComputeLogprobsRequest) -> None:
    """Checks temperature and model."""
    if not 0 < request.temperature < math.inf:
        raise invalid("temperature", f"must be above 0 and finite (given: {request.temperature})")
    if request.model not in (learner_pb2.MODEL_UNSPECIFIED, learner_pb2.MODEL_POLICY, learner_pb2.MODEL_REFERENCE):
        raise invalid("model", f"must be MODEL_POLICY or MODEL_REFERENCE (given: {request.model})")


def check_weight_group(request: learner_pb2.CreateWeightGroupRequest) -> None:
    """Checks epoch and size."""
    if request.epoch < 1:
        raise invalid("epoch", f"must be at least 1 (given: {request.epoch})")
    if request.world_size < 1:
        raise invalid("world_size", f"must be at least 1, for the learner itself (given: {request.world_size})")

"""The audit log.

The coordinator's log has every call that changes runs. A run's events have the calls of named callers.
"""

import logging

from services.coordinator.run.runs import Runs
from shoal.errors import ShoalError
from shoal.rpc.audit import OperatorCall

_log = logging.getLogger(__name__)


def record_call(runs: Runs, call: OperatorCall) -> None:
    """Records a call of an operator.

    Refused calls are only in the log, so that refused callers cannot fill a run's events.
    """
    facts = {"caller": str(call.caller or ""), "peer": call.peer, "rpc": call.rpc, "run_id": call.run_id}
    level = logging.WARNING if call.is_refused else logging.INFO
    _log.log(level, "call of an operator", extra={**facts, "code": call.code.name})
    if call.caller is None or call.is_refused:
        return
    try:
        events = runs.active(call.run_id).events
    except ShoalError:
        return  # The run has ended, waits, or does not exist.
    events.add("operator_call", str(call), caller=str(call.caller), rpc=call.rpc, code=call.code.name)

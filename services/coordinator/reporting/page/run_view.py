"""A view of a run from its folder, whether or not a coordinator drives it."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.coordinator.reporting.page.curves import Row
from services.coordinator.rollout.evaluation.history import EVALUATIONS, steps_with_other_questions
from services.coordinator.store.events import EVENTS, read_events
from services.coordinator.store.files.step_file import StepFile
from services.coordinator.store.rollouts import count_drop_reasons, count_groups, list_rollouts
from services.coordinator.store.rows import GroupState
from services.coordinator.store.run_record import RunRecord
from shoal.config import RunConfig
from shoal.errors import ShoalError
from shoal.v1 import coordinator_pb2 as pb

NUM_GROUPS = 12
"""Number of groups that a report shows from the end of the run."""


@dataclass(frozen=True)
class RunView:
    """Everything that a report shows of a run."""

    record: RunRecord
    config: RunConfig | None
    """None if it cannot be read."""
    rows: Sequence[Row]
    """The metrics of each train step and evaluation."""
    attempts: Mapping[int, str]
    """The steps from which the run was resumed, each with a text such as "attempt 1"."""
    num_groups: Mapping[str, int]
    """Groups by state."""
    num_dropped: Mapping[str, int]
    """Dropped groups by reason."""
    groups: Sequence[pb.RolloutGroup]
    """The last groups that were sampled or dropped, the newest first."""
    changed_questions: Sequence[int] = ()
    """The steps whose evaluation used different questions than the previous evaluation."""


def view_run(record: RunRecord) -> RunView:
    """Reads a run's folder. Raises `FailedPrecondition` for another version of Shoal, `DataLoss` for damaged files."""
    config = None
    with contextlib.suppress(ShoalError):  # Of another version of Shoal, for example.
        config = record.load_config()
    num_groups = count_groups(record.folder)
    return RunView(
        record=record,
        config=config,
        rows=StepFile(record.folder / "metrics.jsonl").read(),
        attempts=_attempts(read_events(record.folder / EVENTS)),
        num_groups=num_groups,
        num_dropped=count_drop_reasons(record.folder),
        groups=_last_groups(record.folder, num_groups.get(GroupState.ISSUED, 0)),
        changed_questions=steps_with_other_questions(record.folder / EVALUATIONS),
    )


def _attempts(events: Iterable[pb.RunEvent]) -> dict[int, str]:
    """Returns the steps from which the current history was resumed. An attempt discards later steps."""
    attempts: dict[int, str] = {}
    for event in events:
        if event.kind == "restored":
            step, attempt = (int(event.attributes.fields[name].number_value) for name in ("policy_version", "attempt"))
            attempts = {earlier: words for earlier, words in attempts.items() if earlier < step}
            attempts[step] = f"attempt {attempt}"
    return attempts


def _last_groups(folder: Path, num_being_sampled: int) -> list[pb.RolloutGroup]:
    """Reads up to `NUM_GROUPS` groups that are no longer sampled, the last in the order of issue first."""
    request = pb.ListRolloutsRequest(last=NUM_GROUPS + num_being_sampled, page_size=NUM_GROUPS)
    groups: list[pb.RolloutGroup] = []
    while True:
        page = list_rollouts(folder, request)
        for group in page.groups:
            if groups and groups[-1].order_number == group.order_number:
                groups[-1].rollouts.extend(group.rollouts)  # The rest of a group that is too large for a page.
            elif group.state != GroupState.ISSUED:
                groups.append(group)
        request.page_token = page.next_page_token
        if not request.page_token:
            return groups[: -NUM_GROUPS - 1 : -1]

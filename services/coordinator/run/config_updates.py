"""Changes of an active run's configuration: they are checked and stored when requested, and applied when possible.

    request -> config.json, event "config_changed"; fields that do not alter training change at once
    apply   -> at the next step boundary: checkpoint, learner, the configuration that all parts share, "config_applied"

`config.json` has the new values from the request on, so they outlive the coordinator. Because of the checkpoint before
the change, a restore never repeats earlier steps with the new values. Changes that still wait when the coordinator ends
take effect at the step where the coordinator's next start restores the run. The ledger has the configuration of its
steps. So each restore detects new values, and records each change once, no matter when the process died.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.store.events import EventLog, follow_events
from services.coordinator.store.run_record import RunRecord
from shoal.config import RunConfig
from shoal.config.changes import changed_fields, changed_values
from shoal.config.epochs import with_counted_steps
from shoal.config.live import LiveConfig, only_at_once, updated_config, without_at_once
from shoal.config.load import config_digest, dump_config
from shoal.error_reasons import ErrorReason
from shoal.errors import Aborted, FailedPrecondition
from shoal.grpo.schedule import learning_rate
from shoal.v1 import coordinator_pb2 as pb
from shoal.wire import invalid


@dataclass
class ConfigUpdates:
    """The changes of an active run's configuration."""

    config: LiveConfig
    """The configuration, shared with all parts of the run. Only this class changes it."""
    record: RunRecord
    events: EventLog
    num_prompts: int
    """Number of prompts of the data, from which epochs are counted."""
    is_closed: bool = False
    """Whether the last step is taken, so that no change could have an effect."""
    stored: RunConfig = field(init=False)
    """The configuration with all changes, including changes that wait for the next step."""
    left: Mapping[str, str] = field(default_factory=dict)
    """Changes that waited when the coordinator ended, in the form of `changed_fields`. They are in use already."""

    def __post_init__(self) -> None:
        self.stored = self.config()

    def request(self, changes: Mapping[str, Any] | Struct, mask: Sequence[str], etag: str) -> list[pb.ConfigChange]:
        """Checks and stores changes, and applies changes that need not wait for the next step.

        Returns the changed fields. A value that the run already has changes nothing. Raises `InvalidArgument` for a
        change that an active run cannot take, `Aborted` when the configuration does not have the tag `etag`, and
        `FailedPrecondition` after the last step.
        """
        changed = with_counted_steps(updated_config(self.stored, changes, mask), self.num_prompts)
        fields = changed_fields(self.stored, changed)
        if not fields:
            return []
        if etag and etag != config_digest(self.stored):
            raise Aborted(
                f"the configuration of run {self.record.run_id} has changed since it had etag {etag}: read the run "
                "again, and repeat the change",
                reason=ErrorReason.CONFIG_CHANGED,
            )
        if self.is_closed:
            raise FailedPrecondition(
                f"run {self.record.run_id} has taken its last step, {self.record.policy_version}, and is about to end: "
                "after its end, resume the run with the changes",
                reason=ErrorReason.RUN_ENDED,
            )
        if changed.run.num_steps != self.stored.run.num_steps:
            self._check_num_steps(changed.run.num_steps)
        note = rate_note(self.stored, changed, self.record.policy_version)
        self.record.save_config(changed)
        self.stored = changed
        self.config.current = only_at_once(self.config(), changed)
        waiting = changed_fields(self.config(), changed)
        when = f" (from the next step on: {', '.join(waiting)})" if waiting else ""
        self.events.add(
            "config_changed", _described(fields) + when, fields=list(fields), waiting=list(waiting), changes=waiting
        )
        if note:
            self.events.add("notice", note)
        return [pb.ConfigChange(field=name, change=change, waits=name in waiting) for name, change in fields.items()]

    def _check_num_steps(self, num_steps: int) -> None:
        # The step after the last one may be under way.
        least = self.record.policy_version + 2
        if num_steps < least:
            raise invalid(
                "run.num_steps",
                f"must be at least {least}, since step {least - 1} may be in progress (given: {num_steps}); to end the "
                "run earlier, stop the run",
            )

    @property
    def waiting(self) -> RunConfig | None:
        """The configuration of the next step, if it differs from the configuration of the last step."""
        return self.stored if changed_fields(self.config(), self.stored) else None

    def apply(self, waiting: RunConfig, policy_version: int) -> Mapping[str, str]:
        """Applies waiting changes, once the learner has them. Returns their fields, in the form of `changed_fields`."""
        waiting = only_at_once(waiting, self.stored)  # Those that came since then are in use already.
        fields = changed_fields(self.config(), waiting)
        self.config.current = waiting
        self.record.num_steps_changed(self.config().run.num_steps)
        self._applied(fields, policy_version)
        return fields

    @property
    def trained(self) -> Mapping[str, Any]:
        """The configuration of the next step as the ledger keeps it: without fields that do not alter training."""
        return dump_config(without_at_once(self.config()))

    def restored(self, policy_version: int, before: Mapping[str, Any] | None) -> Mapping[str, str]:
        """Reports, after a restore of the run, the changes that waited when the coordinator ended.

        `before` is the configuration of the steps in the ledger; None if the ledger has none. Returns the fields that
        have changed since then, by a change or a resume, in the form of `changed_fields`.
        """
        left, self.left = self.left, {}
        if left:
            self._applied(left, policy_version)
        return left if before is None else changed_values(before, self.trained)

    def _applied(self, fields: Mapping[str, str], policy_version: int) -> None:
        self.events.add(
            "config_applied",
            f"from step {policy_version + 1} on: {_described(fields)}",
            fields=list(fields),
            policy_version=policy_version,
        )


async def left_waiting(events: Path) -> dict[str, str]:
    """Reads from a run's events the changes that were neither applied nor overridden, in the form of `changed_fields`.
    Raises the errors of `read_events`."""
    left: dict[str, str] = {}
    async for event in follow_events(events, lambda: False, kinds=("config_changed", "config_applied")):
        attributes = json_format.MessageToDict(event.attributes)
        if "changes" in attributes:
            left = attributes["changes"]
        else:
            left = {name: change for name, change in left.items() if name not in attributes["fields"]}
    return left


def _described(fields: Mapping[str, str]) -> str:
    return "; ".join(f"{name}: {change}" for name, change in fields.items())


def rate_note(before: RunConfig, config: RunConfig, policy_version: int) -> str:
    """Describes the jump of the learning rate after `policy_version` steps if the run's length changes and its schedule
    follows the length; empty without a jump. Refused and skipped steps do not count."""
    taken = policy_version * config.grpo.optimizer_steps_per_step
    if not taken or before.run.num_steps == config.run.num_steps or not config.run.num_steps:
        return ""
    last, now, then = learning_rate(before, taken - 1), learning_rate(config, taken), learning_rate(config, taken - 1)
    if before.learner != config.learner or last == then:
        return ""
    return (
        f"run.num_steps: {before.run.num_steps} -> {config.run.num_steps}: the schedule {config.learner.lr_scheduler} "
        f"follows the length of the run, so the learning rate goes from {last:.3g} (step {policy_version}) to "
        f"{now:.3g} (step {policy_version + 1}); to change the rate, set learner.learning_rate or learner.lr_scheduler"
    )

"""The check that data, held-out questions and base model are unchanged when a run continues."""

from collections.abc import Mapping

from shoal.config import RunConfig
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition

TRAINING, EVALUATION, MODEL, TOKENIZER = "data.sources", "evaluation.sources", "model.path", "model.tokenizer"

Digests = Mapping[str, Mapping[str, str]]
"""Digests by field of the configuration, and then by the name of a file, a data set or a task."""


def changed_inputs(config: RunConfig, before: Digests, now: Digests) -> list[str]:
    """Describes the accepted changes: changes of held-out questions and, if `run.changed_data` is "accept", of data.

    Sources that a change of the configuration has replaced do not count.

    Raises `FailedPrecondition` (INPUTS_CHANGED) for other changes: the ledger names prompts by their rows, and a
    checkpoint belongs to its model.
    """
    refused: dict[str, list[str]] = {}
    noted: list[str] = []
    for field in (MODEL, TOKENIZER, TRAINING, EVALUATION):
        for change in _changes(field, before.get(field, {}), now.get(field, {})):
            accepted = field == EVALUATION or (field == TRAINING and config.run.changed_data == "accept")
            (noted if accepted else refused.setdefault(field, [])).append(change)
    if refused:
        changes = [change for found in refused.values() for change in found]
        consent = (
            "; to continue with the new rows in place of the old rows, use --set run.changed_data=accept"
            if [*refused] == [TRAINING]
            else ""
        )
        raise FailedPrecondition(
            f"the inputs of the run have changed: {'; '.join(changes)}. Restore the earlier inputs, "
            f"or start a new run{consent}",
            reason=ErrorReason.INPUTS_CHANGED,
        )
    return noted


def _changes(field: str, before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Describes the differences of sources that are both in `before` and in `now`.

    Other differences come from a change of the configuration.
    """
    is_model = field in (MODEL, TOKENIZER)
    names = sorted(before.keys() | now.keys() if is_model and before and now else before.keys() & now.keys())
    return [
        f"{field}: {name} has changed (digest {_short(before.get(name))}, now {_short(now.get(name))})"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _short(digest: str | None) -> str:
    return "none" if digest is None else digest.removeprefix("sampled-")[:12]

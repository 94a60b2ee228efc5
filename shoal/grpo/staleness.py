"""Staleness, and the capacity that bounds staleness.

Slots: a step takes P groups, and the bound is S. A group is charged a slot when it is issued. The slot is released when
the generators have the weights of the step that consumed the group. Steps consume groups in the order of issue, P
groups a step. With (S + 1) * P slots no group is ever trained on more than S versions after it was issued:

Group k belongs to step n = k // P (steps from 0; step n is taken at version n or below). Before its issue k + 1 - (S +
1) * P groups had been released, so all of step k // P - S - 1 = n - S - 1 was published: the generators had at least
version n - S (less the skipped steps, which step n's version lacks too). The group's oldest token is of that version or
a later one, and n - (n - S) = S. This holds wherever the token was sampled: a group that continues on another generator
keeps its slot, and all its tokens came after its first issue.

A dropped group keeps its slot until its step is over. If it released the slot at once, later groups could be issued
under weights one version older than the proof needs.

Active sampling: a step takes a window of P groups, extended by one for each group in the window without a signal, up to
R more. Each group without a signal releases its slot as soon as it settles in the window, and a replacement is issued
at the tail, in order. The bound holds as before, since every step still consumes P slots that were not released early:

When group k is issued, at most (S + 1) * P - 1 groups before it have a slot. The groups that released theirs early lie
in windows that have already begun, so each step that comes wholly before k takes P of the groups with a slot: at most S
such steps were not published when k was issued. The learner can be ahead by those steps only.

A group without a signal after the window keeps its slot until the window reaches it: before, no step may take it. After
R refills such groups keep their slots too, and the step trains on groups with a signal.
"""

from collections.abc import Iterable

from shoal.rollout import WeightVersion


def staleness(learner_version: WeightVersion, versions: Iterable[WeightVersion]) -> int:
    """Counts the train steps between the oldest of `versions` and the learner's version.

    Raises ValueError when a version is of another attempt: a restore discarded its tokens.
    """
    versions = list(versions)
    if foreign := [version for version in versions if version.attempt != learner_version.attempt]:
        raise ValueError(f"version {foreign[0]} is not of attempt {learner_version.attempt}")
    return max(learner_version.policy_version - version.policy_version for version in versions)

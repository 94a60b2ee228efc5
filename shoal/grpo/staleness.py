"""How staleness is bounded.

Slots: P groups a step, bound S. A slot is charged when a group is issued, and released when the generators hold
the weights of the step that used it up. Groups are used up in the order of issue, P a step. With (S + 1) * P slots
no group is ever trained on more than S versions after it was issued:

    Group k belongs to step n = k // P (steps from 0; step n is taken at version n or below). To issue it,
    k + 1 - (S + 1) * P groups had been released, so all of step k // P - S - 1 = n - S - 1 was published:
    the generators held at least version n - S (less the skipped steps, which step n's version lacks too).
    Its oldest token is of that version or a later one, and n - (n - S) = S.

A dropped group keeps its slot until its step is through: released at once, it would let later groups be issued
under weights one version older than the proof needs.

Active sampling: a step takes a window of P groups, and of one more for each group in the window that has no signal,
up to R more. Each of those gives its slot back as soon as it settles in the window, and a replacement is issued at
the tail, in order like all others. The bound holds as before, since every step still uses up exactly P slots that
nobody gave back:

    When group k is issued, at most (S + 1) * P - 1 groups before it hold a slot. Those that gave theirs back lie in
    windows already begun, so each step that comes wholly before k takes P of the former: there are at most S such
    steps that were not published when k was issued. Those are all by which the learner can be ahead.

A group without a signal behind the window keeps its slot until the window reaches it: before, no step is sure to
have it. Past R refills they keep their slots too, and the step trains on what has a signal.
"""

from collections.abc import Iterable

from shoal.rollout import WeightVersion


def capacity(max_staleness: int, groups_per_step: int) -> int:
    """Slots of the buffer: most groups that may be issued and not yet used up."""
    return (max_staleness + 1) * groups_per_step


def staleness(learner_version: WeightVersion, versions: Iterable[WeightVersion]) -> int:
    """Train steps between the oldest of some weights and the learner's.

    Raises ValueError when a version is of another attempt: its tokens belong to a future that was given up.
    """
    versions = list(versions)
    if foreign := [version for version in versions if version.attempt != learner_version.attempt]:
        raise ValueError(f"version {foreign[0]} is not of attempt {learner_version.attempt}")
    return max(learner_version.policy_version - version.policy_version for version in versions)

"""Staleness, and the number of slots that bounds staleness.

Each train step consumes P groups, in the order of issue. A group occupies a slot from its issue until its step is
released: until the generators have the weights of the step, or until the step is skipped. There are (S + 1) * P slots.
Claim: no group is trained on more than S versions after it was issued.

Proof. Groups and steps count from 0, so group k belongs to step n = k // P. When group k is issued, at most (S + 1) * P
- 1 of the k earlier groups occupy slots. The other groups, at least k + 1 - (S + 1) * P, are released. Groups are
released by whole steps, so steps 0 to n - S - 1 are released. If no step is skipped, the generators thus have at least
version n - S when group k is issued, and step n begins at version n. The difference is S. If one of the first n - S
steps is skipped, both versions are lower by 1. If a later step is skipped, only the version at step n is lower. All
tokens of group k are sampled after its first issue, even on another generator. So none is of an earlier version.

A dropped group keeps its slot until its step is over. If the group released its slot at once, later groups could be
issued under weights one version older than the proof needs.

Active sampling: the groups of a step form a window, which begins with P groups. Each group in the window that settles
without a signal releases its slot at once, and widens the window by one group, at most R times. The replacement is
issued after all other groups. The claim still holds: a window with r replacements has r groups that release their slots
early, and P groups that keep them until the step is released. Suppose that m of the steps before the step of group k
are not released when group k is issued. Then the groups of these steps occupy at least m * P slots, and at most (S + 1)
* P - 1. So m is at most S, and group k is trained on at most m versions after it was issued.

No step takes groups beyond its window. So a group beyond the window keeps its slot until the window reaches it, even
without a signal. After R replacements, further groups without a signal keep their slots and are not trained on.
"""

from collections.abc import Iterable

from shoal.rollout import WeightVersion


def staleness(learner_version: WeightVersion, versions: Iterable[WeightVersion]) -> int:
    """Counts the train steps between the oldest of `versions` and the learner's version.

    Raises ValueError if a version belongs to another attempt, since a restore discarded the tokens of that attempt.
    """
    versions = list(versions)
    if foreign := [version for version in versions if version.attempt != learner_version.attempt]:
        raise ValueError(f"version {foreign[0]} does not belong to attempt {learner_version.attempt} of the learner")
    return max(learner_version.policy_version - version.policy_version for version in versions)

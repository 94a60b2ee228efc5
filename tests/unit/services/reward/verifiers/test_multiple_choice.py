"""Tests of the choice that a text states: not one that it denies, asks, supposes, quotes or takes back."""

import pytest

from services.reward.verifiers.registry import VERIFIERS


def choice(completion: str, *, strict: bool = False) -> str | None:
    return VERIFIERS["multiple_choice"].judge(completion, "A", (), {"strict": strict}).answer


@pytest.mark.parametrize(
    ("completion", "stated"),
    [
        ("Is the answer C? Yes.", "C"),
        ("I would say the answer is C.", "C"),
        ("We say the answer is C.", "C"),
        ("No doubt the answer is C.", "C"),
        ("Not sure but the answer is C.", "C"),
        ("The answer is B. No, C.", "C"),
        ("The answer is B. Correction: C.", "C"),
        ("The answer is B... or rather C.", "C"),
        ("The answer is B. Scratch that, C.", "C"),
        ("The answer is B. I mean C.", "C"),
        ("The answer is B. On second thought, C.", "C"),
        ("The answer is B. It should be C.", "C"),
        ("I choose C.", "C"),
        ("The answer is either B or C.", "BC"),
        ("The answer is C, right?", "C"),
        ("The answer is C, I think.", "C"),
        ("Some may think B. The correct answer is C because some students say B.", "C"),
        ("The answer is D. But if it is raining, choose C.", "D"),
        ("The answer is D. (If the sign were positive, the answer would be C.)", "D"),
        ("I have no doubt the answer is C.", "C"),
        ("The answer is C. No, B or D.", "BD"),
        ("The answer is C. No, wait. Let me think... Yes, C.", "C"),
        ("The answer is B, I mean C.", "C"),
        ("Answer: B\nCorrection: C", "C"),
        ("The correct answer is C. The most tempting answer is B.", "C"),
        ("The answer is not A, B, or D, but C.", "C"),
        ("My answer is B. Bob's answer is C.", "B"),
        ('"The answer is C," Bob said. I say B.', "B"),
        ("The answer is clearly C.", "C"),
        ("Eliminate A, B and D, leaving C.", "C"),
        ("That leaves B or C.", "BC"),
        ("The answer is B. EDIT: C", "C"),
        ("The answer is B. I change my answer to C.", "C"),
        ("The answer is B. Changing my answer to C.", "C"),
        ("I take that back: C.", "C"),
        ("The answer is B. Hold on, C.", "C"),
        ("The answer is B. Let me correct that: C.", "C"),
        ("The answer is B. My mistake, C.", "C"),
        ("The answer is B. Apologies: C.", "C"),
        ("The answer is B. Strike that: C.", "C"),
        ("The answer is B. Rather, C.", "C"),
        ("The answer is B, or better, C.", "C"),
        ("The answer is therefore C.", "C"),
    ],
)
def test_the_last_choice_that_the_text_states_counts(completion: str, stated: str) -> None:
    assert choice(completion) == stated


@pytest.mark.parametrize(
    "completion",
    [
        "The answer is not \\boxed{C}.",
        "I would not say \\boxed{C}.",
        "Some students say the answer is C.",
        "Many people think the answer is C.",
        "Bob says the answer is C.",
        "Tom claims that the answer is C.",
        "It is not true that the answer is C.",
        "It is not the case that the answer is C.",
        "I don't think the answer is C.",
        "I do not believe the answer is C.",
        "I am not sure the answer is C.",
        "If the answer is C, then x = 3.",
        "Let's say the answer is C.",
        "Unless the answer is C, x fails.",
        "We can rule out that the answer is C.",
        "It can't be the case that the answer is C.",
        "The least likely answer is C.",
        "The other answer is C.",
        "My previous answer is C.",
        "The answer is B. No, that is wrong.",
        "The answer is B. Wait, no.",
        "The answer is B. That's wrong.",
        "The answer is C, which is wrong.",
        "It would be wrong to say the answer is C.",
        "It is a mistake to think the answer is C.",
        "It is tempting to say the answer is C.",
        "It would be an error to conclude that the answer is C.",
        "It seems the answer is C.",
        "I initially thought the answer is C.",
        "Students choose C.",
        'The teacher said "the answer is C".',
        "Neither the answer is C nor D.",
        "If we look closely the answer is C.",
        "The answer is C. No.",
        "Don't say the answer is C.",
        "Choose the best answer: A, B, C, or D?",
        "Her answer is C.",
        "Hypothetically, the answer is C.",
        "Let us assume the answer is C. Then 2 = 3, a contradiction.",
        'The statement "the answer is C" is false.',
        "C is the correct answer? I doubt it.",
    ],
)
def test_a_choice_that_the_text_does_not_state_is_none(completion: str) -> None:
    assert choice(completion) == ""


@pytest.mark.parametrize(
    ("completion", "stated"),
    [
        ("The answer is B. No, C.", "C"),
        ("No, C.", ""),
        ("I choose C.", ""),
        ("The answer is B. I choose C.", "B"),
    ],
)
def test_a_strict_choice_is_marked_or_corrects_one_that_is(completion: str, stated: str) -> None:
    assert choice(completion, strict=True) == stated

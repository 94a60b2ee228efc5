"""Tests of the answer that a text states."""

import pytest

from services.reward.common.math.stated.answers import stated_answers


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("The answer is 7. No, 8", "8"),
        ("The answer is $7$. Correction: it is $8$.", "8"),
        ("The answer is 7. Wait, let me check: 3 + 4 = 7. Yes.", "7"),
        ("The answer is 7, because 10 - 3 = 7.", "7"),
        ("The answer is 3, not 4.", "3"),
        ("The answer is not 3 but 4.", "4"),
        ("\\boxed{7}. No, it should be 8.", "8"),
        ("\\boxed{7}\n\nCheck: 3 + 4 = 7, and 7 < 9.", "7"),
        ("\\boxed{12}. Actually, this can be generalized to n = 100.", "12"),
        ("The answer is 12 minutes. The wait is 5 minutes long.", "12\\text{ minutes}"),
        ("The answer is 6. Wait, I forgot to add 1. So 7.", "7"),
        ("The probability is $\\frac{1}{6}$, or about 16.7%.", "\\frac{1}{6}"),
        ("The answer, which cannot be negative, is 5.", "5"),
        ("Since x is not 0, x = 5.", "x = 5"),
        ("$4$ is the answer to question 5.", "4"),
        ("The answer is 4 [1].", "4"),
        ("The answer is 1 000 000.", "1000000"),
        ("It takes 3 hours 20 minutes.", "3\\text{ hours}, 20\\text{ minutes}"),
        ("They are:\n- \\boxed{3}", "3"),
        ("\\boxed{5} cm", "5\\text{ cm}"),
        ("So $x=5$. Check: $2\\cdot 5=10$.", "x=5"),
        ("The answer is 3, 4 or 5.", "3, 4, 5"),
        ("1 or 2 or 3", "1, 2, 3"),
        ("The answer is 3*sqrt(2)/2.", "3\\cdot \\sqrt{2}/2"),
        ("The answer is [0, 1).", "[0, 1)"),
        ("The answer is 1.5 million.", "1.5\\text{ million}"),
        ("The answer is more than 5.", "> 5"),
        ("Final Answer: The largest $n$ is 34.", "34"),
        ("She makes $18 every day.", "\\$18"),
        ("It is 4, because 10 - 6 = 4.", "4"),
        ("The answer is 5, i.e. about 67%.", "5, 67\\%"),
        ("The answer is |x - 3|.", "|x - 3|"),
        ("| 5 | 12 |", "12"),
        ("1 foot / 10 feet * 100% = 10%", "10\\%"),
        ("Use \\boxed{}. The answer is $5$.", "5"),
        ("I put the answer in \\boxed{}. So $x = 5$.", "x = 5"),
        ("\\boxed{}. Actually, it is 5.", "5"),
        ("x \\equiv 4 (mod 9)", "x \\equiv 4\\pmod{9}"),
        ("$x$ is congruent to $4$ modulo $9$.", "x \\equiv 4\\pmod{9}"),
        ("17 mod 5 = 2", "17 \\bmod  5 = 2"),
        ("The answer is 1F in base 16.", "1F_{16}"),
        ("The answer is 5 in decimal.", "5"),
        ("x < -5 or x > 2", "x < -5 \\text{ or } x > 2"),
        ("\\boxed{x<-5} and \\boxed{x>2}", "x<-5 \\text{ and } x>2"),
        ("The answer is _5_ two times.", "5"),
    ],
)
def test_the_last_stated_answer_counts(text: str, answer: str) -> None:
    found = stated_answers(text)
    assert found and found[0] == answer, found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I do not know.",
        "It is not 5.",
        "The answer cannot be 5.",
        "The answer is anything but 5.",
        "I do not think the answer is 5.",
        "I get \\boxed{5}. Rechecking, \\boxed{6",
        "\\boxed{6}. Wait, that is wrong.",
        "There are 6 ways. Thus \\boxed{}",
        "\\boxed{6}, and so \\boxed{\\text{ }}.",
        "The answer is 6. So \\boxed{\\_\\_}",
        "We get 6. This results in $\\boxed{\\ldots}$.",
        "\\fbox{4}",
        "<answer>4</answer>",
        "The answer is no 15.",
        "The answer is far from 15.",
    ],
)
def test_what_is_denied_cut_off_or_taken_back_is_no_answer(text: str) -> None:
    assert stated_answers(text) == []


def test_the_rank_of_boxes_decides_between_them_and_announced_answers() -> None:
    text = "\\boxed{7}. So the answer is 8."
    assert [stated_answers(text, rank) for rank in (0, 50, 100, -1)] == [["7"], ["8"], ["8"], ["8"]]
    text = "The answer is 8. So \\boxed{7}"
    assert [stated_answers(text, rank) for rank in (0, 50, 100, -1)] == [["7"], ["7"], ["8"], ["8"]]


def test_forms_of_one_amount_are_answers_each() -> None:
    found = stated_answers("The answer is 10 minutes, or 600 seconds.")
    assert found == ["10\\text{ minutes}", "600\\text{ seconds}"]
    assert stated_answers("The answer is 10 minutes, or 500 seconds.") == ["10\\text{ minutes}, 500\\text{ seconds}"]
    assert stated_answers("It takes 90 minutes, or 1 hour 30 minutes.")[0] == "90\\text{ minutes}"


def test_boxes_side_by_side_are_one_answer() -> None:
    assert stated_answers("\\boxed{1} and \\boxed{2}") == ["1, 2"]
    assert stated_answers("\\boxed{5} no wait, \\boxed{4}") == ["4"]

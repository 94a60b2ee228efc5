"""Completions are hostile text: these tests parse the page as a browser does, and look for what could act."""

import base64
import hashlib
import re
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from pathlib import Path

from services.coordinator.reporting.page.page import MAX_CHARS, MAX_TABLE_ROWS, excerpt, render
from services.coordinator.reporting.page.run_view import RunView
from services.coordinator.store.run_record import RunRecord, RunState
from shoal.config import parse_config
from shoal.v1 import coordinator_pb2 as pb
from shoal.v1 import rollout_pb2
from tests.support.wordings import has_all

HOSTILE = (
    "</pre></details></style></script><script>alert(1)</script><img src=x onerror=alert(1)>"
    "<a href='javascript:alert(1)' style='x' \"onload='1'>&lt;&#x3c;<!--<svg onload=alert(1)>{{ 7 * 7 }}<|im_end|>"
)
CONFIG = parse_config({"model": {"path": HOSTILE}, "data": {"sources": [{"path": HOSTILE}]}})


def hostile_group(text: str = HOSTILE) -> pb.RolloutGroup:
    """A group in which everything that is not Shoal's own is `text`."""
    scored = rollout_pb2.SCORE_OUTCOME_SCORED
    score = rollout_pb2.Score(
        outcome=scored,
        reward=0.5,
        verifier_scores=[rollout_pb2.VerifierScore(verifier=text, outcome=scored, value=0.5, detail=text)],
        parts=[rollout_pb2.RewardPart(name=text, value=0.25)] * 2,
    )
    rollout = pb.Rollout(text=text, num_tokens=3, score=score, advantage=0.5)
    return pb.RolloutGroup(
        group_id=text, prompt_id=text, prompt_text=text, state="DROPPED", drop_reason=text, rollouts=[rollout]
    )


VIEW = RunView(
    record=RunRecord("run", Path("/runs/run"), state=RunState.FAILED, message=HOSTILE, num_steps=20),
    config=CONFIG,
    rows=[
        {"step": 0, "eval/num_prompts": 10, "eval/num_completions": 10, "eval/unscored_rate": 0.1},
        {"step": 1, "objective/scores": 0.5, "time/step": 2.0},
    ],
    attempts={1: "attempt 1"},
    num_groups={"DROPPED": 1},
    num_dropped={HOSTILE: 1},
    groups=[hostile_group(), hostile_group(HOSTILE * 100)],
)


@dataclass
class Page(HTMLParser):
    """The elements of a page with their attributes, and its text by element."""

    html: str
    elements: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    texts: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.texts.append((self.elements[-1][0] if self.elements else "", data))

    def text(self, tag: str = "") -> str:
        return "\n".join(data for element, data in self.texts if tag in ("", element))


def test_hostile_text_makes_no_element_and_no_attribute() -> None:
    hostile = Page(render(VIEW))
    record = replace(VIEW.record, message="")
    harmless = Page(render(replace(VIEW, record=record, groups=[hostile_group("a"), hostile_group("a" * 9999)])))
    assert hostile.elements and [tag for tag, _ in hostile.elements] == [tag for tag, _ in harmless.elements]
    names = {name for _, attributes in hostile.elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("style", "src", "href", "srcset")], names


def test_hostile_text_is_shown_letter_for_letter() -> None:
    page = Page(render(VIEW))
    assert [data.removeprefix("\n") for tag, data in page.texts if tag == "pre" and data.strip()][:2] == [HOSTILE] * 2
    assert "{{" in page.text("pre"), "text was taken for a template"


def test_the_policy_lets_only_the_page_s_own_style_and_script_act() -> None:
    html = render(VIEW)
    [policy] = [a["content"] for tag, a in Page(html).elements if a.get("http-equiv") == "Content-Security-Policy"]
    directives = dict(part.split(" ", 1) for part in policy.split("; "))
    assert directives["default-src"] == "'none'"
    for name, tag in (("style-src", "style"), ("script-src", "script")):
        [content] = re.findall(f"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert directives[name] == f"'sha256-{digest}'"


def test_the_page_loads_nothing() -> None:
    html = render(replace(VIEW, record=replace(VIEW.record, message=""), config=None, num_dropped={}, groups=[]))
    assert not re.findall(r"https?://|url\(|@import|src=|href=|fetch\(|import\(", html)


def test_a_run_without_steps_and_groups_says_so() -> None:
    record = RunRecord("new", Path("/runs/new"), num_steps=100)
    text = Page(render(RunView(record, None, [], {}, {}, {}, []))).text()
    assert has_all(text, "starting", "of 100", "No train step", "No group") and "Evaluations" not in text


def test_a_failed_run_says_why_and_one_that_is_resumed_says_where() -> None:
    text = Page(render(replace(VIEW, record=replace(VIEW.record, message="the learner is gone")))).text()
    assert "the learner is gone" in text
    assert "step 1 (attempt 1)" in text


def test_groups_of_an_ended_run_that_were_not_used_up_are_not_under_way() -> None:
    scored = pb.RolloutGroup(state="SCORED")
    ended = replace(VIEW, num_groups={"SCORED": 16}, num_dropped={}, groups=[scored])
    text = Page(render(ended)).text()
    running = Page(render(replace(ended, record=replace(VIEW.record, state=RunState.RUNNING)))).text()
    assert "16 discarded" in text and "16 under way" in running and "under way" not in text


def test_what_was_not_measured_is_named_beside_what_was() -> None:
    text = Page(render(VIEW)).text()
    assert text.count("has measured this") == 4, "reward and step time are the only charts"


def test_the_table_of_a_long_run_has_its_last_steps() -> None:
    rows = [{"step": step, "objective/scores": 0.5} for step in range(1, MAX_TABLE_ROWS + 11)]
    page = Page(render(replace(VIEW, rows=rows)))
    assert f"The last {MAX_TABLE_ROWS} of {len(rows)} steps." in page.text()
    assert page.html.count('<th scope="row">') == MAX_TABLE_ROWS


def test_a_short_text_is_not_folded() -> None:
    assert excerpt("The answer is 5.").preview == ""


def test_a_folded_text_is_whole_and_its_preview_has_both_ends() -> None:
    text = "Let me think.\n" + "I carry the one.\n" * 100 + "The answer is 5."
    shown = excerpt(text)
    assert shown.text == text and shown.num_chars == len(text)
    assert shown.preview.startswith("Let me think. I") and shown.preview.endswith("answer is 5.")
    assert "\n" not in shown.preview


def test_many_short_lines_are_folded() -> None:
    assert excerpt("\n".join("123456789")).preview == " ".join("123456789")


def test_a_huge_text_keeps_its_beginning_and_its_end_and_says_what_is_missing() -> None:
    shown = excerpt("b" * MAX_CHARS + "e" * MAX_CHARS)
    assert len(shown.text) < MAX_CHARS + 100, f"{len(shown.text)} characters"
    assert shown.text.startswith("bbb") and shown.text.endswith("eee")
    assert f"{MAX_CHARS:,} characters left out" in shown.text
    assert shown.num_chars == 2 * MAX_CHARS

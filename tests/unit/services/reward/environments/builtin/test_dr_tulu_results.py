"""Results of DR Tulu's tools; tests/contract/environments/test_dr_tulu.py compares them with the package's own."""

import json
from typing import Any

import pytest

from services.reward.environments.builtin.dr_tulu_results import DR_TULU_TOOLS, dr_tulu_result, result_id
from services.reward.environments.builtin.mcp import Mcp
from shoal.conversation import ToolCall
from tests.unit.services.reward.environments.builtin.turns import texts, turn

PAPERS, PAGES, PASSAGES, PAGE, _ = DR_TULU_TOOLS
URL = "https://example.com/a"


def result(tool: str, **answer: Any) -> tuple[str, bool]:
    return dr_tulu_result(tool, json.dumps(answer), "1a2b3c4d", URL)


def test_each_document_has_an_id_and_what_is_known_of_it() -> None:
    papers = [
        {"snippet": {"snippetKind": "body", "text": " A passage. "}, "paper": {"title": "A paper"}},
        {"snippet": {"snippetKind": "title", "text": "Another paper"}, "paper": {"title": "Another paper"}},
        {"snippet": {"text": "Of no paper."}},
        {"paper": {"title": "Without a snippet"}},
        {"snippet": {"text": ""}, "paper": {"title": ""}},
    ]
    assert result(PAPERS, data=papers) == (
        "<snippet id=1a2b3c4d-0>\nTitle: A paper\nSnippet: A passage.\n</snippet>\n"
        "<snippet id=1a2b3c4d-1>\nTitle: Another paper\nSnippet: No content available\n</snippet>\n"
        "<snippet id=1a2b3c4d-2>\nTitle: No title available\nSnippet: Of no paper.\n</snippet>",
        True,
    )
    found = {"title": "A page", "link": URL, "snippet": "Words."}
    written = f"<snippet id=1a2b3c4d-0>\nTitle: A page\nURL: {URL}\nSnippet: Words.\n</snippet>"
    assert result(PAGES, organic=[found]) == (written, True)
    written = "<snippet id=1a2b3c4d-0>\nTitle: No title available\nSnippet: It is.\n</snippet>"
    assert result(PASSAGES, data=[{"passage": "It is.\n", "score": 0.5}]) == (written, True)


@pytest.mark.parametrize(
    ("answer", "text", "ok"),
    [
        ({"success": True, "markdown": "Words."}, "Words.", True),
        ({"success": True, "markdown": "Words.", "fit_markdown": "Fewer."}, "Fewer.", True),
        ({"success": True, "markdown": None, "html": "<p>"}, "<p>", True),
        ({"success": True, "markdown": "x" * 2001}, "x" * 2000 + "...", True),
        ({"success": True}, "No content available", False),
        ({"success": False, "error": "404", "markdown": "Words."}, "No content available", False),
    ],
)
def test_a_page_is_its_beginning(answer: dict[str, Any], text: str, ok: bool) -> None:
    written = f"<webpage id=1a2b3c4d-0>\nTitle: No title available\nURL: {URL}\nSnippet: {text}\n</webpage>"
    assert result(PAGE, **answer) == (written, ok)


@pytest.mark.parametrize("tool", [PAPERS, PAGES, PASSAGES])
def test_a_search_without_documents_says_why(tool: str) -> None:
    assert result(tool, error="429 Too Many Requests") == ("Query failed: 429 Too Many Requests", False)
    nothing = ("No results found for the query.", False)
    assert result(tool, data=[], organic=[]) == nothing
    assert result(tool, data=[None, {}, {"snippet": None, "passage": 3}], organic={"title": "x"}) == nothing


def test_an_answer_that_is_no_json_object_is_an_error() -> None:
    for answer in ("", "words", "[1]", '{"data": ', "[" * 100_000, '{"data": ' * 100_000):
        text, ok = dr_tulu_result(PAPERS, answer, "1a2b3c4d", "")
        assert text.startswith(f"error: {PAPERS} ") and not ok, text


@pytest.mark.parametrize("url", [None, 5, ["https://example.com/a"], {}])
async def test_a_url_that_is_no_text_is_none_and_costs_no_episode(url: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def carried_out(_: ToolCall) -> tuple[str, bool, bool]:
        return json.dumps({"data": [{"snippet": {"text": "Words."}}]}), True, False

    environment = Mcp(url="http://x", results="dr_tulu", tools={"search": {"tool": PAPERS}})
    monkeypatch.setattr(environment, "_carried_out", carried_out)
    observation = await environment.step(turn(("search", {"query": "GRPO", "url": url})))
    assert "Snippet: Words." in texts(observation)[0], observation


def test_ids_are_those_of_the_seed_and_of_the_call() -> None:
    ids = {result_id(seed, f"call-{turn}-{number}") for seed in (1, 2) for turn in (1, 2) for number in (1, 2)}
    assert len(ids) == 8 and all(len(id_) == 8 and int(id_, 16) >= 0 for id_ in ids), ids
    assert result_id(1, "call-1-1") == result_id(1, "call-1-1")


def test_the_form_is_refused_for_tools_whose_results_are_not_known() -> None:
    Mcp(url="http://x", results="dr_tulu", tools={"search": {"tool": PAPERS}})
    with pytest.raises(ValueError, match=r"^results .*'dr_tulu'"):
        Mcp(url="http://x", results="json")
    with pytest.raises(ValueError, match=rf"{PAPERS}.* add$"):
        Mcp(url="http://x", results="dr_tulu", tools=["add", PAPERS])
    with pytest.raises(ValueError, match="in tools"):
        Mcp(url="http://x", results="dr_tulu")

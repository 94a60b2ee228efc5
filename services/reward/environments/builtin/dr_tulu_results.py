"""Results of DR Tulu's tools as its package `dr-agent` writes them: documents with ids, which an answer can cite.

    <tool_output><snippet id=9f86d081-0>
    Title: ...
    URL: ...
    Snippet: ...
    </snippet></tool_output>

The package's server answers with the JSON of the service that it asked; this module extracts the documents.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from shoal.parsing import parse_json

_PAGE_CHARS = 2000
"""Number of characters that the policy reads of a page, from its beginning."""


@dataclass(frozen=True)
class Document:
    """A passage of a paper, a page that a search found, or the text of a page."""

    title: str
    url: str
    text: str

    def __str__(self) -> str:
        lines = [f"Title: {self.title or 'No title available'}"]
        if self.url:
            lines.append(f"URL: {self.url}")
        return "\n".join([*lines, f"Snippet: {self.text or 'No content available'}"])


def result_id(seed: int, call_id: str) -> str:
    """Returns the id of a call's result: 8 hexadecimal digits that no policy can guess. Equal seeds of an episode give
    equal ids."""
    return hashlib.sha256(f"{seed} {call_id}".encode()).hexdigest()[:8]


def dr_tulu_result(tool: str, answer: str, id_: str, url: str) -> tuple[str, bool]:
    """Returns the policy's text for the `answer` of a server's `tool`, and whether it is a result. `id_` begins the ids
    of the documents; `url` is the page that the policy asked for, if any."""
    try:
        said = parse_json(answer)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return f"error: {tool} has not answered with a JSON object", False
    if tool in _PAGES:
        document = Document("", url, "" if said.get("error") else _text_of_page(said))
        return _written("webpage", id_, [document]), bool(document.text)
    if error := said.get("error"):
        return f"Query failed: {error}", False
    documents = [document for document in _SEARCHES[tool](said) if document.title or document.url or document.text]
    return _written("snippet", id_, documents) or "No results found for the query.", bool(documents)


def _written(tag: str, id_: str, documents: list[Document]) -> str:
    return "\n".join(f"<{tag} id={id_}-{place}>\n{document}\n</{tag}>" for place, document in enumerate(documents))


def _papers(said: dict[str, Any]) -> Iterator[Document]:
    for item in _tables(said, "data"):
        snippet, paper = _table(item, "snippet"), _table(item, "paper")
        if snippet:
            # A repeated title is not a passage.
            text = "" if paper and snippet.get("snippetKind") == "title" else _text(snippet, "text")
            yield Document(_text(paper, "title"), "", text)


def _found_pages(said: dict[str, Any]) -> Iterator[Document]:
    for item in _tables(said, "organic"):
        yield Document(_text(item, "title"), _text(item, "link"), _text(item, "snippet"))


def _passages(said: dict[str, Any]) -> Iterator[Document]:
    for item in _tables(said, "data"):
        yield Document("", "", _text(item, "passage"))


def _text_of_page(said: dict[str, Any]) -> str:
    """Returns the beginning of a page's text; empty if the page could not be read."""
    if not said.get("success"):
        return ""
    texts = [said.get(key) for key in ("fit_markdown", "markdown", "html")]
    text = next((text for text in texts if isinstance(text, str) and text), "")
    return text[:_PAGE_CHARS].strip() + ("..." if len(text) > _PAGE_CHARS else "")


def _tables(said: dict[str, Any], key: str) -> list[dict[str, Any]]:
    items = said.get(key)
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []


def _table(item: dict[str, Any], key: str) -> dict[str, Any]:
    value = item.get(key)
    return value if isinstance(value, dict) else {}


def _text(item: dict[str, Any], key: str) -> str:
    value = item.get(key)
    return value.strip() if isinstance(value, str) else ""


_SEARCHES: dict[str, Callable[[dict[str, Any]], Iterator[Document]]] = {
    "semantic_scholar_snippet_search": _papers,
    "serper_google_webpage_search": _found_pages,
    "massive_serve_search": _passages,
}
_PAGES = ("crawl4ai_docker_fetch_webpage_content", "crawl4ai_fetch_webpage_content")
DR_TULU_TOOLS = (*_SEARCHES, *_PAGES)
"""The server's tools whose results this module can read."""

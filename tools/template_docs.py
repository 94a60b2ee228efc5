"""Writes docs/chat-templates.md: what episodes do with chat templates of three packages, and with Shoal's own.

python tools/template_docs.py            downloads the packages with pip and rewrites the page
python tools/template_docs.py --check    reports whether the rows of Shoal's own templates are current, and changes
                                         nothing; downloads nothing
"""

import argparse
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from shoal.chat_templates import NAMES, template_text
from shoal.chat_templates.rendering import Dialogue, render_texts
from shoal.conversation import ChatMessage, ToolDefinition
from shoal.episodes.suffix import TurnRenderer
from shoal.episodes.suffix_check import Difference, Turn, find_difference, trial_turns
from shoal.errors import InvalidArgument

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "chat-templates.md"
OWN = "Shoal's own"
PACKAGES = {
    "llama-cpp-python==0.3.36": "vendor/llama.cpp/models/templates/",
    "trl==1.16.0": "trl/chat_templates/",
    "axolotl==0.19.0": "axolotl/utils/chat_templates/templates/",
}
"""The folder of the templates in each package."""

SEARCH = ToolDefinition("search", "Finds pages.", {"type": "object", "properties": {"query": {"type": "string"}}})
SYSTEM, QUESTION = ChatMessage("system", "Be brief."), ChatMessage("user", "What is 2 + 2?")
BEGIN = ChatMessage("user", "Begin.")
THOUGHTFUL = tuple(
    Turn(ChatMessage("assistant", f"<think>\nI know.\n</think>\n\n{turn.answer.content}"), turn.messages)
    for turn in trial_turns(())
)
COLUMNS = ("talk", "system", "thoughts", "two messages", "tools", "tools as user")
_SPECIAL = re.compile(
    r"<\|[^\s<>|'\"]+\|?>|<[a-z_]+\|>|<｜[^｜\s]+｜>|<\|[\"']\|>|<(?:start|end)_of_turn>|</?s>|<(?:bos|eos|sep)>"
    r"|<seed:[a-z_]+>|<SPECIAL_\d+>|<extra_id_\d+>|<turn_end>|\[\|[a-z]+\|\]|\[/?[A-Z][A-Z_]+\]|\]~!b\[|\]~b\]|\[e~\["
)
_TAG = re.compile(r"</?[a-z][a-z_]*>")

NOTES = {
    "T": "The template drops or rewrites thoughts of earlier turns, or writes a beginning of a turn (such as an empty "
    "thought) that it does not write for earlier turns. An episode keeps what the policy saw and sampled.",
    "S": "The template moves the system's words, or the tools, to the last message of the user. An episode leaves them "
    "where the policy saw them.",
    "J": "The template refuses two messages of the user in a row. Rendered at once they are one message; in an episode "
    "the second is a turn of its own, because the prompt has ended.",
    "N": "The template numbers calls through the whole conversation. An episode numbers the calls of each turn.",
    "R": "The template writes the mark before results only once in a conversation. An episode writes it for each turn.",
    "C": "Behind results the template begins a turn that it does not begin in earlier turns.",
    "M": "The template writes a call as a message of its own, which the beginning of the policy's turn excludes.",
    "a": "No token ends the policy's turn.",
    "b": "The template takes content only as a list of parts, or omits other content.",
    "c": "The template writes no results of tools. `episodes.user_results` puts them into messages of the user.",
    "d": "The template always needs tools, and models have another template for conversations without tools.",
    "e": "The template begins the policy's turn behind each message of a user, so nothing can follow a prompt.",
    "f": "The template fails for calls in the environment of Jinja that transformers uses.",
}
"""Differences in upper case, refusals in lower case."""


@dataclass(frozen=True)
class Row:
    """What episodes do with a template."""

    name: str
    ends: str
    results: tuple[str, ...]
    """For each column "=", or the key of a note."""


def tokenizer_with(template: str) -> Any:
    """Returns a tokenizer of bytes that knows the special tokens that a template writes, which are told by their form:
    the packages ship no tokenizers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    encoder = Tokenizer(models.BPE(alphabet, []))
    encoder.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    encoder.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=encoder, bos_token="<s>", eos_token="</s>", clean_up_tokenization_spaces=False
    )
    tokenizer.chat_template = template
    written = template + "".join(_trial_texts(tokenizer))
    special = set(_SPECIAL.findall(written))
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(special)})
    tokenizer.add_tokens(sorted({*_TAG.findall(written)} - special))
    return tokenizer


def _trial_texts(tokenizer: Any) -> Iterator[str]:
    """Yields texts of the template, since some templates put special tokens together."""
    call = {"id": "call00101", "type": "function", "function": {"name": "search", "arguments": {}}}
    user, said = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    called = {"role": "assistant", "content": "", "tool_calls": [call]}
    result = {"role": "tool", "content": "c", "name": "search", "tool_call_id": "call00101"}
    for messages in ([user, said], [user, said, user], [user, called], [user, called, result]):
        outcomes = render_texts(tokenizer, [Dialogue(messages, begins_turn=len(messages) == 3)], {})
        yield from (outcome for outcome in outcomes if isinstance(outcome, str))


def row_of(name: str, template: str) -> Row:
    """Returns the row of a template. Raises `SystemExit` for a difference or refusal that no note explains."""
    tokenizer = tokenizer_with(template)
    try:
        renderer = TurnRenderer(tokenizer)
    except InvalidArgument as error:
        return Row(name, "", (_refusal(name, error.message),) * len(COLUMNS))
    with closing(renderer):
        results = [
            _result(name, renderer, [QUESTION], (), trial_turns(())),
            _result(name, renderer, [SYSTEM, QUESTION], (), trial_turns(())),
            _result(name, renderer, [QUESTION], (), THOUGHTFUL),
            _result(name, renderer, [QUESTION], [BEGIN], trial_turns(())),
        ]
        ends = {*renderer.ends_of_turn}
        with suppress(InvalidArgument):
            with_tools = renderer.with_tools([SEARCH])
            ends |= {*with_tools.ends_of_turn}
            results.append(_result(name, with_tools, [QUESTION], (), trial_turns([SEARCH])))
    results += ["f"] * (5 - len(results))
    texts = [str(text) for text in tokenizer.convert_ids_to_tokens(sorted(ends))]
    return Row(name, " ".join(map(_code, texts)), (*results, _as_user(name, tokenizer)))


def _as_user(name: str, tokenizer: Any) -> str:
    try:
        renderer = TurnRenderer(tokenizer, [SEARCH], user_results="```tool_output\n{result}\n```")
    except InvalidArgument as error:
        return _refusal(name, error.message)
    with closing(renderer):
        return _result(name, renderer, [QUESTION], (), trial_turns([SEARCH]))


def _result(
    name: str,
    renderer: TurnRenderer,
    prompt: Sequence[ChatMessage],
    first: Sequence[ChatMessage],
    turns: Sequence[Turn],
) -> str:
    try:
        difference = find_difference(renderer, prompt, first, turns)
    except InvalidArgument as error:
        return _refusal(name, error.message)
    return "=" if difference is None else _note(name, difference)


def _note(name: str, difference: Difference) -> str:
    """Returns the key of the note that explains a difference."""
    episode, at_once = difference.in_turns, difference.at_once
    rules: Mapping[str, bool] = {
        "J": difference.turn == 0 and at_once.startswith("\n\n"),
        "S": episode.startswith(("Be brief", "[AVAILABLE_TOOLS]")),
        "N": episode[:1].isdigit() and at_once[:1].isdigit(),
        "C": episode.startswith("<|assistant_start|><|tools_suffix|>"),
        "M": episode.startswith("result<|role_sep|>"),
        "R": "outputs" in episode[:20] and difference.turn > 1,
        "T": bool(re.search(r"(?i)think|thought|I know|Here are|^\nIt is", episode + at_once)),
    }
    return next((key for key, applies in rules.items() if applies), "") or _unexplained(name, str(difference))


def _refusal(name: str, message: str) -> str:
    """Returns the key of the note that explains a refusal."""
    rules: Mapping[str, bool] = {
        "b": bool(re.search("no attribute 'text'|<end_of_utterance", message)),
        "a": "has no end of turn" in message or "refuses messages of the roles assistant" in message,
        "c": "writes no results of tools" in message,
        "d": bool(re.search("'NoneType' object is not iterable|'functions' is undefined", message)),
        "e": "changes the prompt" in message,
        "f": bool(re.search("is unsafe|not JSON serializable", message)),
    }
    return next((key for key, applies in rules.items() if applies), "") or _unexplained(name, message)


def _unexplained(name: str, what: str) -> str:
    raise SystemExit(f"{name}: no note of tools/template_docs.py explains: {what}")


def own_templates() -> Iterator[tuple[str, str]]:
    """Yields names and texts of the templates that come with Shoal."""
    return ((name, template_text(name)) for name in NAMES)


def package_templates(package: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yields names and texts of a package's templates, which pip downloads into a folder."""
    name = package.partition("=")[0]
    kind = ["--no-binary", name] if name == "llama-cpp-python" else ["--only-binary", name]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *kind, "-d", str(folder), package]
    subprocess.run(command, check=True)
    (archive,) = folder.glob(f"{name.replace('-', '_')}-*")
    for path, text in sorted(_files(archive)):
        if PACKAGES[package] in path and path.endswith(".jinja"):
            yield PurePosixPath(path).stem, text.decode()


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist() if name.endswith(".jinja"))
        return
    with tarfile.open(archive) as source:
        for member in source:
            if member.name.endswith(".jinja") and (file := source.extractfile(member)):
                yield member.name, file.read()


def section(title: str, rows: Iterable[Row]) -> str:
    """Returns the section of the templates from one source."""
    head = f"\n## {title}\n\n| template | a turn stops at | {' | '.join(COLUMNS)} |\n|{' --- |' * (len(COLUMNS) + 2)}\n"
    return head + "".join(f"| {_code(row.name)} | {row.ends} | {' | '.join(row.results)} |\n" for row in rows)


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def introduction(rows: Sequence[Row]) -> str:
    """Returns the beginning of the page, with the counts of all rows."""
    counts = [Counter(_kind(row.results[index]) for row in rows) for index in range(len(COLUMNS))]
    table = "".join(
        f"| {column} | {' | '.join(str(count[kind]) for kind in ('equal', 'differs', 'refused'))} |\n"
        for column, count in zip(COLUMNS, counts, strict=True)
    )
    notes = "".join(f"| {key} | {'differs' if key.isupper() else 'refused'} | {NOTES[key]} |\n" for key in NOTES)
    packages = ", ".join(f"`{package}`" for package in PACKAGES)
    return f"""\
# Chat templates

<!-- Written by tools/template_docs.py. -->

This page shows what [episodes](episodes.md) do with {len(rows)} chat templates: Shoal's own, and the templates that
{packages} ship. Each template renders trial conversations
of two turns in two ways. An episode appends the new messages to the tokens that the policy sampled
([tool-calls.md](tool-calls.md#between-two-turns)). Later use of the model may render the whole conversation at once.
The packages ship no tokenizers, so special tokens are told by their form.

| column | the conversation has |
| --- | --- |
| talk | a question, and messages of the user after each turn |
| system | a message of the system, too |
| thoughts | thoughts between `<think>` and `</think>` in the turns |
| two messages | two messages of the user before the first turn: the prompt's, and the environment's |
| tools | a tool, a call in each turn, and its result |
| tools as user | the same, with `episodes.user_results` |

`=` means that both ways give the same tokens. An upper-case letter means that episodes work, and that the tokens differ
for the stated reason. A lower-case letter means that a run refuses the template for this use.

| column | equal | differs | refused |
| --- | --- | --- | --- |
{table}
| letter | | reason |
| --- | --- | --- |
{notes}"""


def _kind(result: str) -> str:
    return "equal" if result == "=" else "differs" if result.isupper() else "refused"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the rows of Shoal's own templates, write nothing")
    is_check = parser.parse_args().check
    own = [row_of(name, text) for name, text in own_templates()]
    if is_check:
        if section(OWN, own) not in PAGE.read_text():
            raise SystemExit(f"{PAGE.relative_to(ROOT)} does not match Shoal's templates; run: make templates")
        return
    sources = {OWN: own}
    for package in PACKAGES:
        with tempfile.TemporaryDirectory() as folder:
            templates = package_templates(package, Path(folder))
            sources[package] = [row_of(name, text) for name, text in templates]
    everything = [row for rows in sources.values() for row in rows]
    PAGE.write_text(introduction(everything) + "".join(section(title, rows) for title, rows in sources.items()))


if __name__ == "__main__":
    main()

"""Everything that reads a file, by name, with real files to begin from."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct

from services.coordinator.cli.config_check import check_config
from shoal.chat_templates import NAMES, template_text
from shoal.config import dump_config, load_config, parse_config
from shoal.config.load import config_struct, load_overrides
from shoal.config.notes import notes_on
from shoal.config.tables.data import SourceConfig
from shoal.config.tables.reward import RewardConfig
from shoal.data.conversation import conversation_of
from shoal.data.files import read_files
from shoal.errors import ShoalError
from shoal.rpc.auth.authority import issue_all
from shoal.rpc.auth.tls import TlsFolder
from shoal.rpc.auth.tokens import OwnToken, TokensFile, digest_of
from shoal.suggest import rates_of_run
from shoal.translate import SYSTEMS, translate_arguments
from tests.support.fuzzed_files.sources import SOURCES
from tests.support.repository import ROOT
from tests.support.whole_checkpoints import write_snapshot

Read = Callable[[bytes, Path], object]


@dataclass(frozen=True)
class Target:
    read: Read
    """Gets the contents and an empty folder. May raise `ShoalError` alone."""
    seeds: Callable[[], Sequence[bytes]]
    """Contents of real files."""


def _configurations() -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "configs").rglob("*.toml"))]


def _read_configuration(data: bytes, folder: Path) -> None:
    path = folder / "run.toml"
    path.write_bytes(data)
    config = load_config(path)
    check_config(config)
    notes_on(config)
    assert parse_config(config_struct(config)) == config, "a configuration changes as it travels"


def _read_override(data: bytes, _: Path) -> None:
    text = data.decode("utf-8", "replace")
    load_overrides([text])
    check_config(load_config(ROOT / "configs/quickstart.toml", [text]))


def _read_struct(data: bytes, _: Path) -> None:
    """As the configuration of `StartRun` and `UpdateRunConfig`."""
    try:
        struct = json_format.Parse(data, Struct())
    except (json_format.ParseError, ValueError, RecursionError):
        return
    check_config(parse_config(struct))


def _structs() -> list[bytes]:
    paths = sorted((ROOT / "configs").rglob("*.toml"))
    return [json.dumps(dump_config(load_config(path))).encode() for path in paths]


def _translate(system: str, suffix: str, data: bytes, folder: Path) -> None:
    path = folder / f"launch{suffix}"
    path.write_bytes(data)
    translation = translate_arguments(system, [str(path)], skip=["all"])
    if translation.toml:
        parse_config(translation.values)


_ROWS = SourceConfig(path="x", messages_column="messages", ground_truth_column="label", verifier_column="verifier")
_REWARD = RewardConfig()


def _read_rows(suffix: str, data: bytes, folder: Path) -> None:
    path = folder / f"rows{suffix}"
    path.write_bytes(data)
    source = _ROWS.model_copy(update={"path": str(path)})
    from shoal.rollout import Prompt
    from shoal.wire import prompt_to_wire

    for row in read_files(source).rows:
        conversation = conversation_of(row, source, _REWARD.known_verifiers, _REWARD)
        import numpy as np

        prompt = Prompt("x", np.array([1], np.int32), "", conversation.ground_truths, conversation.messages)
        prompt_to_wire(prompt).SerializeToString()


_RECORDS: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "1 + 1?"}], "label": "2", "verifier": "gsm8k"},
    {"messages": "1 + 1?", "label": 2, "verifier": "math"},
    {"messages": "Write.", "label": {"type": "object", "maximum": 5}, "verifier": "json_schema"},
    {"messages": "Write.", "label": ["a", "b"], "verifier": ["exact_string", "regex"]},
]


def _jsonl() -> list[bytes]:
    return ["".join(json.dumps(record) + "\n" for record in _RECORDS).encode()]


@cache
def _parquet() -> list[bytes]:
    import io

    import pyarrow
    import pyarrow.parquet

    columns = {name: [json.dumps(record[name]) for record in _RECORDS] for name in _RECORDS[0]}
    columns["verifier"] = ["gsm8k"] * len(_RECORDS)
    found = []
    for compression in ("NONE", "snappy"):
        stream = io.BytesIO()
        pyarrow.parquet.write_table(pyarrow.table(columns), stream, compression=compression)
        found.append(stream.getvalue())
    return found


def _read_tokens(data: bytes, folder: Path) -> None:
    path = folder / "tokens.txt"
    path.write_bytes(data)
    path.chmod(0o600)
    with _ignoring_refusals():
        OwnToken(path=path)
    TokensFile(path).caller("a-token-of-a-worker")


def _tokens() -> list[bytes]:
    digest = digest_of("a-token-of-a-worker")
    return [f"# tokens\n{digest} worker fleet # all\n{digest} operator anna\n".encode(), b"a-token-of-a-worker\n"]


@cache
def _certificates() -> Path:
    folder = Path(mkdtemp(prefix="shoal-fuzz-certs-"))
    list(issue_all(folder, ["example.org"]))
    return folder / "coordinator"


def _read_certificates(name: str, data: bytes, folder: Path) -> None:
    shutil.copytree(_certificates(), folder, dirs_exist_ok=True)
    (folder / name).write_bytes(data)
    TlsFolder(folder).current()


@cache
def run_folder() -> Path:
    """A run's folder, whose files targets replace in a copy."""
    from tests.support.fuzzed_files.run_folder import make_run_folder

    return make_run_folder(Path(mkdtemp(prefix="shoal-fuzz-run-")))


def _file_of_run(name: str) -> list[bytes]:
    return [(run_folder() / name).read_bytes()]


def _read_run(name: str, data: bytes, folder: Path) -> None:
    """Reads a run's folder as a coordinator and the commands do, with one file replaced."""
    from services.coordinator.cli.shared.report_file import write_report
    from services.coordinator.run.checkpoints import Checkpoints
    from services.coordinator.store.events import read_events
    from services.coordinator.store.files.step_file import StepFile
    from services.coordinator.store.rollouts import list_rollouts
    from services.coordinator.store.run_folders import RunFolders, describe, list_runs
    from services.coordinator.store.run_record import RunRecord
    from shoal.v1 import coordinator_pb2 as pb

    run = folder / "runs" / run_folder().name
    shutil.copytree(run_folder(), run)
    (run / name).write_bytes(data)
    folders = RunFolders(run.parent)
    folders.left()
    list_runs(folders, pb.ListRunsRequest()).SerializeToString()
    with _ignoring_refusals():
        describe(folders.find("")).SerializeToString()
    for order in (pb.ROLLOUT_ORDER_ISSUE, pb.ROLLOUT_ORDER_REWARD):
        with _ignoring_refusals():
            list_rollouts(run, pb.ListRolloutsRequest(order=order)).SerializeToString()
    with _ignoring_refusals():
        read_events(run / "events.jsonl")
    with _ignoring_refusals():
        write_report(RunRecord.load(run))
    checkpoints = Checkpoints(run)
    checkpoints.manifests()
    for checkpoint in checkpoints.committed():
        with _ignoring_refusals():
            manifest = checkpoints.load_checked(checkpoint)
            checkpoints.contents(checkpoint)
            checkpoints.restore_ledger(manifest, run / "ledger.sqlite", 7)
    with _ignoring_refusals():
        rates_of_run(run)
    with _ignoring_refusals():
        StepFile(run / "metrics.jsonl").keep_until(1)


def _read_ledger(data: bytes, folder: Path) -> None:
    """Opens a ledger to write to it, as a resume does."""
    import asyncio

    from services.coordinator.store.ledger import Ledger
    from services.coordinator.store.rollouts import LEDGER

    (folder / LEDGER).write_bytes(data)

    async def go_on() -> None:
        ledger = Ledger(folder / LEDGER, attempt=2)
        try:
            await ledger.open()
            await ledger.issue_state()
            await ledger.dropped(2, "for a test", 2)
            await write_snapshot(ledger, folder / "copy.sqlite")
        finally:
            await ledger.close()

    asyncio.run(go_on())


@cache
def _tokenizer() -> Any:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"1": 0}, "1")), eos_token="</s>")


def _read_template(data: bytes, folder: Path) -> None:
    from shoal.conversation import ChatMessage
    from shoal.data.conversation import Conversation
    from shoal.data.rendering import render

    path = folder / "template.jinja"
    path.write_bytes(data)
    tokenizer = _tokenizer()
    tokenizer.chat_template = template_text(str(path))
    messages = (ChatMessage("system", "Be brief."), ChatMessage("user", "1 + 1?"), ChatMessage("assistant", "2"))
    render([Conversation("rows.jsonl:1", messages, ())], tokenizer, {})


def _templates() -> list[bytes]:
    return [template_text(name).encode() for name in NAMES]


def _judge(name: str, data: bytes, _: Path) -> None:
    """Judges a completion by a label; both are in the bytes."""
    from services.reward.pool.worker import judge

    text, _, label_text = data.decode("utf-8", "replace").partition("\n===\n")
    try:
        label = json.loads(label_text)
    except (ValueError, RecursionError):
        label = label_text
    options = {"timeout_s": 0.5} if name in ("regex", "json_schema") else {}
    answer = judge(name, text, label, [1, 2, 3], options)
    assert "raised" not in answer["detail"], answer["detail"]


def _judged(name: str) -> list[bytes]:
    labels: list[Any] = ["2", "\\frac{1}{2}", ["a", "b"], {"type": "object"}, "a+b", "(A)", {"func_name": "word_count"}]
    texts = [
        "It is \\boxed{2}", "<think>a</think> <answer>{\"a\": 1}</answer>", "The answer is (A).", "$\\frac{1}{2}$ aab",
    ]  # fmt: skip
    return [f"{text}\n===\n{json.dumps(label)}".encode() for text in texts for label in labels]


_VERIFIERS = (
    "gsm8k", "math", "strict_math", "regex", "json_schema", "ifeval", "ifeval_old", "multiple_choice", "string_f1",
    "puzzle", "flan", "re_search_f1", "think_answer_format", "reasoning_steps", "repetition_penalty", "soft_overlong",
)  # fmt: skip


def _custom(data: bytes, folder: Path) -> None:
    from services.reward.custom.code import Unusable
    from services.reward.custom.custom_verifiers import read_code
    from shoal.config.tables.custom_verifiers import CustomVerifierConfig

    path = folder / "score.py"
    path.write_bytes(data)
    try:
        read_code("score", CustomVerifierConfig(file=str(path), function="score"))
    except Unusable:
        pass


@contextmanager
def _ignoring_refusals() -> Iterator[None]:
    """Lets the next reader read, whatever this one refuses."""
    try:
        yield
    except ShoalError as error:
        from tests.support.fuzzed_files.trial import check_message

        check_message(error)


_RUN_FILES = (
    "run.json", "config.json", "events.jsonl", "ledger.sqlite", "metrics.jsonl", "evaluations.jsonl",
    "segments/text-00000001.segment", "checkpoints/step-00000002/manifest.json",
)  # fmt: skip

TARGETS: dict[str, Target] = {
    "config": Target(_read_configuration, _configurations),
    "override": Target(
        _read_override, lambda: [line for text in _configurations() for line in text.split(b"\n") if b"=" in line]
    ),
    "struct": Target(_read_struct, _structs),
    **{
        f"translate-{system}{suffix}": Target(
            partial(_translate, system, suffix), partial(list, [*SOURCES.get((system, suffix), ()), *SOURCES[suffix]])
        )
        for system in SYSTEMS
        for suffix in (".sh", ".yaml", ".json", ".py", ".ipynb")
    },
    "rows.jsonl": Target(partial(_read_rows, ".jsonl"), _jsonl),
    "rows.parquet": Target(partial(_read_rows, ".parquet"), _parquet),
    "tokens": Target(_read_tokens, _tokens),
    **{
        name: Target(partial(_read_certificates, name), partial(lambda of: [(_certificates() / of).read_bytes()], name))
        for name in ("tls.crt", "tls.key", "ca.crt")
    },
    **{f"run/{name}": Target(partial(_read_run, name), partial(_file_of_run, name)) for name in _RUN_FILES},
    "ledger": Target(_read_ledger, partial(_file_of_run, "ledger.sqlite")),
    "template": Target(_read_template, _templates),
    **{f"verifier-{name}": Target(partial(_judge, name), partial(_judged, name)) for name in _VERIFIERS},
    "custom": Target(_custom, lambda: [(ROOT / path).read_bytes() for path in _EXAMPLES]),
}
_EXAMPLES = [str(path.relative_to(ROOT)) for path in sorted((ROOT / "examples").rglob("*.py"))]

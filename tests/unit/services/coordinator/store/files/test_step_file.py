import json
from pathlib import Path

from services.coordinator.store.files.step_file import StepFile


def test_a_restore_removes_later_lines_and_returns_the_others(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = StepFile(path)
    for step, metrics in (
        (0, {"eval/num_prompts": 4.0}),
        (1, {"lr": 0.1}),
        (2, {"lr": 0.1}),
        (2, {"eval/num_prompts": 4.0}),
    ):
        file.add(step, metrics)
    with path.open("a") as broken:
        broken.write('{"step": 3, "lr"')  # A process that was killed.
    assert [row["step"] for row in file.keep_until(1)] == [0, 1]
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1]


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    good = b'{"step": 1, "loss": 0.5}\n'
    path.write_bytes(
        good + b"\xff\xfe\n1.5\n[1]\n{}\n" + b'{"step": "2"}\n{"step": NaN}\n' + b"[" * 5000 + b'\n{"step": 2}\n'
    )
    assert StepFile(path).read() == [{"step": 1, "loss": 0.5}, {"step": 2}]
    assert StepFile(path).keep_until(1) == [{"step": 1, "loss": 0.5}]
    assert path.read_bytes() == good

"""The folder of a run with an export of step 10, as a coordinator and a learner leave it."""

from pathlib import Path

from services.coordinator.store.run_record import RunRecord, RunState
from shoal.config import parse_config

NAMES = [
    "README.md", "SHA256SUMS", "adapter/adapter_config.json", "config.json", "generation_config.json",
    "model.safetensors", "tokenizer.json",
]  # fmt: skip
"""The files of an export of the run, as `shoal export` writes them."""
CONFIG = {
    "model": {"path": "/srv/models/secret-place/base"},
    "data": {"sources": [{"task": "arithmetic"}, {"path": "/srv/data/questions.jsonl"}]},
}


def make_exported_run(data_dir: Path) -> RunRecord:
    """Makes the run "sums" with steps 10 and 20 exported; the files are named as a model's, and are none."""
    folder = data_dir / "sums"
    folder.mkdir(parents=True)
    record = RunRecord(
        "sums", folder, state=RunState.FINISHED, message="all steps are done", policy_version=20, num_steps=20,
        exported_steps=[10, 20],
    )  # fmt: skip
    record.save()
    record.save_config(parse_config(CONFIG))
    for step in record.exported_steps:
        export = folder / "exports" / f"step-{step:08d}"
        export.mkdir(parents=True)
        (export / "model.safetensors").write_bytes(bytes([step]) * 300_000)
        (export / "adapter").mkdir()
        for name in ("adapter/adapter_config.json", "config.json", "tokenizer.json", "generation_config.json"):
            (export / name).write_text(f'{{"step": {step}}}\n')
    return record

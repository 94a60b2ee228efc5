"""The folder of a run with an export of step 10, as a coordinator and a learner leave it."""

from pathlib import Path

from services.coordinator.store.run_record import RunRecord, RunState
from shoal.config import parse_config

CONFIG = {
    "model": {"path": "/srv/models/secret-place/base"},
    "data": {"sources": [{"task": "arithmetic"}, {"path": "/srv/data/questions.jsonl"}]},
}


def make_exported_run(data_dir: Path, *, num_weight_bytes: int = 300_000) -> RunRecord:
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
        (export / "model.safetensors").write_bytes(bytes([step]) * num_weight_bytes)
        (export / "adapter").mkdir()
        for name in ("adapter/adapter_config.json", "config.json", "tokenizer.json", "generation_config.json"):
            (export / name).write_text(f'{{"step": {step}}}\n')
    return record

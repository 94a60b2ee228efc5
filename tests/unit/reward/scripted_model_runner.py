"""A reward model's process without a model: `python -m tests.unit.reward.scripted_model_runner PARENT_PID`.

`reward.model.path` is a folder with a script: "refuse" or "die" in its file `start` is what becomes of a start. The
text of a question says what becomes of it: "die", "hang", "once" (dies under it the first time), "refuse", "raise";
other texts get their length as the logit. The sizes of the batches that were asked go to the file `batches`.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from services.reward.frames import encode_frame, read_frame, take_pipes
from shoal.worker.parent import die_with_parent


def main() -> None:
    die_with_parent(parent_pid=int(sys.argv[1]))
    batches, answers = take_pipes()
    settings = read_frame(batches)
    assert settings is not None
    folder = Path(settings["config"]["path"])
    start = (folder / "start").read_text() if (folder / "start").exists() else ""
    if start == "refuse":
        answers.write(encode_frame({"event": "refused", "why": "reward.model.path: not to my taste"}))
        return
    if start == "die":
        os._exit(3)
    answers.write(encode_frame({"event": "ready", "label": 0}))
    while (batch := read_frame(batches)) is not None:
        with open(folder / "batches", "a") as file:
            file.write(f"{len(batch['questions'])}\n")
        answered = [answer(folder, place, question["text"]) for place, question in enumerate(batch["questions"])]
        answers.write(encode_frame({"event": "answered", "answers": answered}))


def answer(folder: Path, place: int, text: str) -> dict[str, Any]:
    if text == "die":
        os._exit(1)
    if text == "hang":
        time.sleep(60)
    if text == "once" and not (folder / "died").exists():
        (folder / "died").touch()
        os._exit(1)
    if text == "refuse":
        return {"place": place, "outcome": "unscorable", "detail": "too long"}
    if text == "raise":
        return {"place": place, "outcome": "failed", "detail": "out of memory"}
    return {"place": place, "outcome": "scored", "logits": [float(len(text))], "num_tokens": len(text)}


if __name__ == "__main__":
    main()

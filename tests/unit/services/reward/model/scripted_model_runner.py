"""A stand-in for the process of a reward model, started as a module with the pid of its parent.

`reward.model.path` is a folder that contains the script. Its file `start` decides how a start ends: "refuse", "full"
or "die".
The text of a question decides how the question ends: "die", "hang", "once" (the process dies the first time),
"refuse" or "raise". Any other text gets its length as the logit. The file `batches` lists the size of each batch.
"""

import os
import sys
import time
from pathlib import Path
from typing import Any

from services.reward.process.frames import encode_frame, read_frame, take_pipes
from shoal.worker.parent import die_with_parent


def main() -> None:
    die_with_parent(parent_pid=int(sys.argv[1]))
    batches, answers = take_pipes()
    settings = read_frame(batches)
    assert settings is not None
    folder = Path(settings["config"]["path"])
    start = (folder / "start").read_text() if (folder / "start").exists() else ""
    if start in ("refuse", "full"):
        why = "reward.model.path: not to my taste"
        answers.write(encode_frame({"event": "refused", "why": why, "is_full": start == "full"}))
        return
    if start == "die":
        os._exit(3)
    answers.write(encode_frame({"event": "ready", "label": 0}))
    while (batch := read_frame(batches)) is not None:
        with open(folder / "batches", "a") as file:
            file.write(f"{len(batch['questions'])}\n")
        answered = [answer(folder, index, question["text"]) for index, question in enumerate(batch["questions"])]
        answers.write(encode_frame({"event": "answered", "answers": answered}))


def answer(folder: Path, index: int, text: str) -> dict[str, Any]:
    if text == "die":
        os._exit(1)
    if text == "hang":
        time.sleep(60)
    if text == "once" and not (folder / "died").exists():
        (folder / "died").touch()
        os._exit(1)
    if text == "refuse":
        return {"index": index, "outcome": "unscorable", "detail": "too long"}
    if text == "raise":
        return {"index": index, "outcome": "failed", "detail": "out of memory"}
    return {"index": index, "outcome": "scored", "logits": [float(len(text))], "num_tokens": len(text)}


if __name__ == "__main__":
    main()

"""Checks the names in `learner.lora.target_modules` before a process of a run starts.

For common architectures the tensors in the model's files suffice. For other architectures, and before a refusal, a
separate process builds the model without memory for its weights, if torch is installed.
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from shoal.errors import FailedPrecondition, InvalidArgument
from shoal.models.adapter_targets import choose_targets
from shoal.models.layers_in_files import layers_in_files
from shoal.models.model_folder import read_json

_TIMEOUT_S = 120.0
"""Importing torch and transformers takes 10 s on a slow machine, and building a large model takes 2 s."""


def check_adapter_targets(folder: Path, names: list[str], *, trust_remote_code: bool = False) -> str:
    """Checks that each name means linear layers of a folder's model.

    Returns a note: why the names could not be checked, or what they leave out; or an empty text.

    Raises the errors of `shoal.models.linear_layers.find_targets`.
    """
    refusal = None
    if layers := layers_in_files(folder):
        try:
            choose_targets(names, layers, {}, model=_model_name(folder))
            return ""
        except InvalidArgument as error:
            refusal = error
    try:
        return _ask_empty_model(folder, names, trust_remote_code=trust_remote_code)
    except FailedPrecondition as error:
        if refusal is not None:
            raise refusal from None
        return (
            "learner.lora.target_modules cannot be checked here, so the learner checks the names when it starts: "
            f"{error}"
        )
    return ""


def _model_name(folder: Path) -> str:
    config = read_json(folder / "config.json")
    return str((config.get("architectures") or [config["model_type"]])[0])


def _ask_empty_model(folder: Path, names: list[str], *, trust_remote_code: bool) -> str:
    """Checks the names with `shoal.models.linear_layers` in another process. Returns what they leave out.

    Raises that module's `InvalidArgument`, and `FailedPrecondition` if the process gives no answer.
    """
    missing = [package for package in ("torch", "transformers") if find_spec(package) is None]
    if missing:
        raise FailedPrecondition(f"the layers of this architecture cannot be listed without {' and '.join(missing)}")
    request = {"folder": str(folder), "names": names, "trust_remote_code": trust_remote_code}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "shoal.models.linear_layers"],
            input=json.dumps(request), capture_output=True, text=True, timeout=_TIMEOUT_S, check=True,
        )  # fmt: skip
        answer = json.loads(done.stdout.splitlines()[-1])
        refusal, left_out = str(answer["refusal"]), str(answer["left_out"])
    except subprocess.TimeoutExpired:
        raise FailedPrecondition(f"transformers built no empty model within {_TIMEOUT_S:.0f} s") from None
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip() or f"exit code {error.returncode}").splitlines()[-1]
        raise FailedPrecondition(f"transformers built no empty model: {reason}") from None
    except (ValueError, IndexError, KeyError, TypeError):
        raise FailedPrecondition("the process that builds an empty model gave no answer") from None
    if refusal:
        raise InvalidArgument(refusal)
    return left_out

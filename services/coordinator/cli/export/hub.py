"""Pushes of a model to the Hugging Face hub: one commit per step, with a tag.

The commit is made after all its files are uploaded, and then gets the tag `step-<step>`. So an interrupted push leaves
the repository unchanged, or leaves a commit that the next push tags.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shoal.errors import AlreadyExists, FailedPrecondition, InvalidArgument, ShoalError, Unavailable

_REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_NOT_ALLOWED, _CONFLICT = (401, 403), 409


def check_name(repo: str) -> None:
    """Raises `InvalidArgument` unless a repository has the form OWNER/NAME."""
    if not _REPO.fullmatch(repo):
        raise InvalidArgument(f"--push {repo!r} is not a repository: give OWNER/NAME, as on the hub")


def check_token() -> None:
    """Raises `FailedPrecondition` without a token. Only the hub knows whether the token may write."""
    from huggingface_hub import get_token

    if get_token() is None:
        raise FailedPrecondition(
            "there is no token of the Hugging Face hub: set HF_TOKEN to a token that may write, or log in "
            "with `hf auth login`; --dry-run shows without a token what would be pushed"
        )


def target(repo: str, step: int, *, public: bool) -> str:
    """Describes the destination of a push."""
    return f"{repo} on the hub, {'public' if public else 'private'}, as revision {_tag(step)}"


def push(folder: Path, repo: str, step: int, *, run_id: str, public: bool) -> None:
    """Commits the files of a model, replacing the repository's files, and tags the commit `step-<step>`.

    Prints what has been done. Creates the repository if needed, private unless `public`. Raises `AlreadyExists` if the
    tag exists, `FailedPrecondition` if the token may not write or the repository has another visibility, and
    `Unavailable` if the push breaks off.
    """
    api = _api()
    with _explaining(repo, step):
        if not _exists(api, repo, step, public=public):
            api.create_repo(repo, private=not public)
            print(f"{repo} is created, {'public' if public else 'private'}", flush=True)
        print(f"pushing to {repo}", flush=True)
        commit = api.upload_folder(
            repo_id=repo, folder_path=folder, commit_message=f"Step {step} of run {run_id}", delete_patterns="*"
        )
        api.create_tag(repo, tag=_tag(step), revision=commit.oid)
        print(f"the model: {repo}, revision {_tag(step)}", flush=True)


def check_repository(repo: str, step: int, *, public: bool) -> None:
    """Raises the error of a push that would fail. Call it before the model is written, which may take minutes."""
    with _explaining(repo, step):
        _exists(_api(), repo, step, public=public)


def _api() -> Any:
    from huggingface_hub import HfApi

    return HfApi(library_name="shoal")


@contextmanager
def _explaining(repo: str, step: int) -> Iterator[None]:
    """Turns the errors of the hub into `ShoalError`s."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except ShoalError:
        raise
    except Exception as error:
        if isinstance(error, HfHubHTTPError) and error.response.status_code in _NOT_ALLOWED:
            raise FailedPrecondition(
                f"the hub refuses the push to {repo} ({error.response.status_code}): use a token that may write there"
            ) from error
        if isinstance(error, HfHubHTTPError) and error.response.status_code == _CONFLICT:
            raise FailedPrecondition(
                f"the hub refuses the push to {repo} ({_CONFLICT}): the repository exists; use another token if "
                "this token may not see the repository, or repeat the command if somebody else is changing it"
            ) from error
        raise Unavailable(
            f"the push to {repo} failed: {_reason(error)}. The repository has no revision {_tag(step)} yet; repeat the "
            "command to complete the push"
        ) from error


def _reason(error: Exception) -> str:
    """Returns a clause: why the hub was not reached, or the hub's answer."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError

    said = str(error).strip().rstrip(".") or type(error).__name__
    # Check the name: different versions of the hub's library use different HTTP libraries.
    is_transport = isinstance(error, OSError) or "TransportError" in {base.__name__ for base in type(error).__mro__}
    if is_transport and not isinstance(error, HfHubHTTPError):
        return f"the hub at {constants.ENDPOINT} cannot be reached, or the connection broke ({said})"
    return said


def _exists(api: Any, repo: str, step: int, *, public: bool) -> bool:
    """Returns whether a repository exists. Raises if it has the revision already, or another visibility."""
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        is_private = api.model_info(repo).private
    except RepositoryNotFoundError:
        return False
    if public == is_private:
        here, cure = ("private", "leave out --public") if is_private else ("public", "add --public")
        raise FailedPrecondition(f"{repo} exists and is {here}: {cure}, or name another repository")
    if _tag(step) in {ref.name for ref in api.list_repo_refs(repo).tags}:
        raise AlreadyExists(f"{repo} has a revision {_tag(step)} already: delete that tag, or name another repository")
    return True


def _tag(step: int) -> str:
    return f"step-{step}"

"""The tokens of `shoal train --private`, which keep other users of this machine out of its services."""

import secrets
import shutil
from dataclasses import replace
from pathlib import Path

from services.coordinator.launcher.plan import ProcessPlan
from shoal.rpc.auth.credentials import Credentials
from shoal.rpc.auth.permissions import Role
from shoal.rpc.auth.tokens import OwnToken, digest_of


class RunTokens:
    """A token for each role, in a folder that only this user can read. The tokens are valid until the processes end."""

    def __init__(self, folder: Path) -> None:
        """Makes new tokens, which replace the tokens of an earlier start."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True, mode=0o700)
        self._folder = folder
        lines = []
        for role in Role:
            token = secrets.token_urlsafe(32)
            self.file_of(role).touch(mode=0o600)
            self.file_of(role).write_text(token)
            lines.append(f"{digest_of(token)} {role} {folder.parent.name}\n")
        self._accepted = folder / "accepted"
        self._accepted.write_text("".join(lines))

    def remove(self) -> None:
        """Deletes the tokens. Call it after the processes that accept them have ended."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def file_of(self, role: Role) -> Path:
        """Returns the file with the token of a role."""
        return self._folder / role

    def given_to(self, plan: ProcessPlan) -> ProcessPlan:
        """Returns a plan in which the process has its own token, and recognizes callers by their tokens."""
        role = Role.COORDINATOR if plan.kind == "coordinator" else Role.WORKER
        files = {"SHOAL_TOKENS_FILE": str(self._accepted), "SHOAL_TOKEN_FILE": str(self.file_of(role))}
        return replace(plan, environment={**plan.environment, **files})

    def credentials(self) -> Credentials:
        """Returns the credentials of the person who trains."""
        return Credentials(token=OwnToken(path=self.file_of(Role.OPERATOR)))

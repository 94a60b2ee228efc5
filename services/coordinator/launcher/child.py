"""`python -m services.coordinator.launcher.child PARENT_PID COMMAND...`: executes COMMAND, which dies with PARENT_PID.

The kernel keeps the parent-death signal across exec, so this works for any command.
"""

import os
import sys

from shoal.worker.parent import die_with_parent


def main() -> None:
    parent_pid, *command = sys.argv[1:]
    die_with_parent(parent_pid=int(parent_pid))
    os.execv(command[0], command)


if __name__ == "__main__":
    main()

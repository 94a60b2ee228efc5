"""`python -m services.reward.sandbox`: can programs be run here? Prints why not, and ends with 1."""

import sys

from services.reward.sandbox.bubblewrap import SandboxUnavailable
from services.reward.sandbox.run import check


def main() -> int:
    try:
        check()
    except SandboxUnavailable as error:
        print(error)
        return 1
    print("a sandbox starts, works and holds")
    return 0


if __name__ == "__main__":
    sys.exit(main())

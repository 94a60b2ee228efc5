"""`python -m services.reward.sandbox`: checks whether programs can run here. If not, prints why and exits with 1."""

import sys

from services.reward.sandbox.bubblewrap import SandboxUnavailable
from services.reward.sandbox.run import check


def main() -> int:
    try:
        check()
    except SandboxUnavailable as error:
        print(error)
        return 1
    print("the sandbox works: programs run, and the self-test did not break out")
    return 0


if __name__ == "__main__":
    sys.exit(main())

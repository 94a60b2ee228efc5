"""`python -m services.reward.sandbox`: checks whether programs can run here. If not, prints why and exits with 1."""

import sys

from services.reward.sandbox.run import why_unavailable


def main() -> int:
    why = why_unavailable()
    print(why or "the sandbox works: programs run, and the self-test did not break out")
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())

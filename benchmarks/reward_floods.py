"""Measures how many honest completions a pool of verifiers scores beside floods of completions that take long.

    python benchmarks/reward_floods.py
    python benchmarks/reward_floods.py --num-groups 25 --group-size 16 --seconds 30

Honest completions of `math` and `gsm8k` are asked for one after the other by a few callers, first alone, then beside
groups of bombs for `math` that came before them, then beside floods for other verifiers as well. Prints honest
completions per second, the longest that one waited, and each rate as a share of the rate alone.
"""

import argparse
import asyncio
import itertools
import json
import time
from dataclasses import dataclass
from typing import Any

from services.reward.pool.pool import VerifierPool

MATH_BOMBS = (
    "\\boxed{9^{9^{9^{9}}}}",
    "\\boxed{\\sum_{k=1}^{10^{12}} \\frac{1}{k^2+k+1}}",
    "\\boxed{(10^9)!}",
    "\\boxed{\\prod_{k=1}^{10^8} k}",
    "\\boxed{" + "\\sqrt{1+" * 90 + "1" + "}" * 90 + "}",
    "\\boxed{\\int_0^1 \\frac{\\sin(x^{17}) e^{x^3}}{1+x^{11}+\\cos(x)} dx}",
    "\\boxed{\\binom{10^9}{5 \\cdot 10^8}}",
    "\\boxed{(x+y+z+w)^{200}}",
)
_LOOP = "```python\nwhile True:\n    pass\n```"
OTHER_BOMBS: dict[str, tuple[str, Any]] = {
    "code": (_LOOP, ["assert f() == 1"] * 3),
    "code_stdio": (_LOOP, [{"input": "", "output": "1"}] * 3),
    "regex": ("a" * 40 + "!", "(a+)+$"),
    "ifeval": ("a" * 40 + "!", {"instruction_id": ["keywords:existence"], "kwargs": [{"keywords": ["(a+)+$"]}]}),
    "language": ("word " * 200_000, "de"),
    "string_f1": ("word " * 500_000, "x"),
    "json_schema": (json.dumps(["a" * 40 + "!"] * 10), {"items": {"pattern": "^(a+)+$"}}),
}
"""Verifier -> completion and label."""
_CALLERS = 4


@dataclass
class Rate:
    """What honest callers got of a verifier."""

    per_s: float
    longest_wait_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-groups", type=int, default=25, help="groups of bombs for each verifier")
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--num-processes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=20.0, help="time of each measurement")
    asyncio.run(_measure(parser.parse_args()))


async def _measure(options: argparse.Namespace) -> None:
    alone = await _rates(options, flooded=[])
    _print("alone", alone, alone)
    _print("beside math bombs", await _rates(options, flooded=["math"]), alone)
    _print("beside all floods", await _rates(options, flooded=["math", *OTHER_BOMBS]), alone)


def _print(what: str, rates: dict[str, Rate], alone: dict[str, Rate]) -> None:
    for verifier, rate in rates.items():
        share = rate.per_s / alone[verifier].per_s
        print(f"{what}: {verifier} {rate.per_s:.0f}/s ({share:.0%}), longest wait {rate.longest_wait_s:.2f} s")


async def _rates(options: argparse.Namespace, *, flooded: list[str]) -> dict[str, Rate]:
    pool = VerifierPool(num_processes=options.num_processes, timeout_s=10.0)
    await pool.start()
    for verifier in ("math", "gsm8k", *OTHER_BOMBS):  # Loads them in each process.
        label = OTHER_BOMBS[verifier][1] if verifier in OTHER_BOMBS else "5"
        await asyncio.gather(*(pool.judge(verifier, "x", label) for _ in range(2 * options.num_processes)))
    flood = [
        asyncio.create_task(pool.judge(verifier, *_bomb(verifier, group), group=f"{verifier} {group}"))
        for group in range(options.num_groups)
        for verifier in flooded
        for _ in range(options.group_size)
    ]
    await asyncio.sleep(0)
    until = time.monotonic() + options.seconds
    callers = {verifier: [_call(pool, verifier, until) for _ in range(_CALLERS)] for verifier in ("math", "gsm8k")}
    waits = dict(zip(callers, await asyncio.gather(*(asyncio.gather(*some) for some in callers.values())), strict=True))
    await pool.close()
    await asyncio.gather(*flood)
    return {
        verifier: Rate(sum(map(len, some)) / options.seconds, max(itertools.chain(*some)))
        for verifier, some in waits.items()
    }


def _bomb(verifier: str, group: int) -> tuple[str, Any]:
    return OTHER_BOMBS[verifier] if verifier in OTHER_BOMBS else (MATH_BOMBS[group % len(MATH_BOMBS)], "5")


async def _call(pool: VerifierPool, verifier: str, until: float) -> list[float]:
    """Asks for one honest completion after the other; returns how long each took, in seconds."""
    waits = []
    for number in itertools.count():
        if (started := time.monotonic()) >= until:
            return waits
        answer = f"\\frac{{{number}}}{{7}}" if verifier == "math" else str(number)
        await pool.judge(verifier, f"It is $\\boxed{{{answer}}}$.", answer, group=f"honest {number // 16}")
        waits.append(time.monotonic() - started)
    raise AssertionError


if __name__ == "__main__":
    main()

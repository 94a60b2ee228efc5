"""Whether the process of a worker is still there, told before its lease expires.

When a process ends, its connections break and its port refuses others, both at once. A network that fails breaks
connections too, but then nothing refuses: the lease decides, and a worker that is back in time has lost nothing.
"""

import asyncio

import grpc

from services.coordinator.workers.member import POLL_S as STATUS_POLL_S
from services.coordinator.workers.member import Member, status_of
from shoal.errors import ShoalError, Unavailable

POLL_S = 0.5
MAX_REFUSALS = 3
"""Refused connections in a row that show the end of a process. One alone may be a firewall that is set anew."""
CONNECT_TIMEOUT_S = 2.0
ENDING_S = 3.0
"""Longest time from the FAILED of a worker that ends until it refuses calls."""


async def until_gone(member: Member) -> None:
    """Waits until the process of a worker has ended, seen from here: nothing listens at its address any more."""
    num_refusals = 0
    while num_refusals < MAX_REFUSALS:
        await asyncio.sleep(POLL_S)
        if member.channel.get_state(try_to_connect=True) is grpc.ChannelConnectivity.READY:
            num_refusals = 0
        else:
            num_refusals = num_refusals + 1 if await _refuses(member.record.address) else 0


async def is_ending(member: Member) -> bool:
    """Whether a worker that FAILED ends its process, which is then started again; one that cannot load stays."""
    for _ in range(round(ENDING_S / STATUS_POLL_S)):
        await asyncio.sleep(STATUS_POLL_S)
        try:
            await status_of(member)
        except Unavailable:
            return True
        except ShoalError:
            continue
    return False


async def _refuses(address: str) -> bool:
    """Returns whether the machine at an address answers that nothing listens there."""
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False

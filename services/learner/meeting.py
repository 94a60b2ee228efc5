"""Where ranks meet that torchrun starts, and may start again."""

import time
import uuid
from datetime import timedelta

import torch.distributed as dist

_ASK_EVERY_S = 0.05


def fresh_part(store: dist.Store, *, rank: int, size: int, timeout: timedelta) -> dist.Store:
    """The same part of a store on all ranks, in which nothing is of ranks that have ended.

    torchrun keeps its store when it starts all ranks again, and in it the addresses of those before, which gloo and
    NCCL would take for those of now. How often a rank was started tells it nothing: machines count for themselves. So
    each says a word of its own, which nobody said before it, and rank 0 answers each word with its own until all have
    heard it. Called on all ranks; raises TimeoutError on rank 0 when some do not come, and what the store raises on
    the others.
    """
    mine = uuid.uuid4().hex
    if rank > 0:
        store.set(f"word/{rank}", mine)
        word = store.get(f"answer/{mine}").decode()
        store.set(f"heard/{word}/{rank}", "")
        return dist.PrefixStore(word, store)
    deadline = time.monotonic() + timeout.total_seconds()
    while missing := [other for other in range(1, size) if not store.check([f"heard/{mine}/{other}"])]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"learner ranks {missing} did not come within {timeout.total_seconds():.0f} s")
        for other in missing:
            if store.check([f"word/{other}"]):
                store.set(f"answer/{store.get(f'word/{other}').decode()}", mine)
        time.sleep(_ASK_EVERY_S)
    return dist.PrefixStore(mine, store)

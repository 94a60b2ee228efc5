"""Rendezvous of ranks that torchrun starts, and may start again."""

import time
import uuid
from datetime import timedelta

import torch.distributed as dist

_POLL_S = 0.05


def fresh_store(store: dist.Store, *, rank: int, size: int, timeout: timedelta) -> dist.Store:
    """Returns the same empty part of a store on all ranks, without keys of ranks that have ended.

    When torchrun starts all ranks again, it keeps its store. Gloo and NCCL would take the earlier ranks' addresses in
    it for current addresses. The restart count does not help, since each machine counts for itself. So each rank sets a
    nonce. Rank 0 answers each nonce with its own nonce, the prefix of the new part, until all ranks have acknowledged
    it. Call this on all ranks. Raises TimeoutError on rank 0 when ranks are missing after the timeout, and the store's
    own error on the others.
    """
    nonce = uuid.uuid4().hex
    if rank > 0:
        store.set(f"nonce/{rank}", nonce)
        prefix = store.get(f"answer/{nonce}").decode()
        store.set(f"acknowledgment/{prefix}/{rank}", "")
        return dist.PrefixStore(prefix, store)
    deadline = time.monotonic() + timeout.total_seconds()
    while missing := [other for other in range(1, size) if not store.check([f"acknowledgment/{nonce}/{other}"])]:
        if time.monotonic() > deadline:
            raise TimeoutError(f"learner ranks {missing} did not join within {timeout.total_seconds():.0f} s")
        for other in missing:
            if store.check([f"nonce/{other}"]):
                store.set(f"answer/{store.get(f'nonce/{other}').decode()}", nonce)
        time.sleep(_POLL_S)
    return dist.PrefixStore(nonce, store)

"""A sender that dies within a broadcast, before the last bucket of a model's weights; started by test_weights.py.

Usage: main() with the arguments RENDEZVOUS MODEL, as a program of tests/support/warm_process.py.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from shoal.weights.board import open_store
from shoal.weights.group import BroadcastGroup
from shoal.weights.rendezvous import Rendezvous
from shoal.weights.transfer import send_weights
from tests.support.real_generator import manifest_of, weights_of


def main() -> None:
    rendezvous = Rendezvous(**json.loads(sys.argv[1]))
    model = AutoModelForCausalLM.from_pretrained(sys.argv[2], dtype=torch.float32)
    manifest = manifest_of(weights_of(model))
    store = open_store(rendezvous.store_host, rendezvous.store_port, timeout_s=30)
    group = BroadcastGroup(rendezvous, rank=0, store=store)
    group.connect()

    def tensors() -> Iterator[tuple[str, Any]]:
        last = list(manifest.buckets())[-1].tensors[0].name
        for name, parameter in model.named_parameters():
            if name == last:
                time.sleep(1)  # Until the sent tensors have arrived.
                os.kill(os.getpid(), signal.SIGKILL)
            yield name, parameter

    send_weights(group, manifest, tensors())

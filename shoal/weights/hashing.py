"""Hashes of tensors, which compare the bytes received with the bytes sent."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def hash_tensor(tensor: "torch.Tensor") -> str:
    """Returns the XXH3-128 over the little-endian bytes of a tensor of any type and device, in hex."""
    import torch
    import xxhash

    flat = tensor.detach().reshape(-1).view(torch.uint8).cpu()
    return str(xxhash.xxh3_128_hexdigest(flat.numpy().data))

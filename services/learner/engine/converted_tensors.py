"""The parameters and buffers of a model, made from the tensors of its files as transformers makes them.

transformers renames, fuses and divides tensors while it loads some models: for example, it stacks the matrices of a
layer's experts. It would read all files at once. Here the tensors that are converted together are a group, and a group
is read when it is needed.
"""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from shoal.models.weight_files import WeightFiles

CONVERSION_ERRORS = (AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError)
"""The errors of transformers' conversions, in either direction, for tensors that they cannot convert."""


class TensorGroup:
    """Tensors of the files that are converted together, and the tensors of the model that they become.

    The parts of a stack, such as experts, are converted one by one: each is a row of the result.
    """

    def __init__(self, transform: Any, target: str, lm: Any, files: WeightFiles) -> None:
        """`target` is the name of the first tensor that `transform`, a conversion of transformers, makes."""
        self._transform = transform
        self._target = target
        self._lm = lm
        self._files = files
        self._names: dict[str, list[str]] = {}
        self.shapes: Mapping[str, tuple[int, ...]] = {}
        """The whole shapes of the tensors of the model, by name."""
        self.num_parts = 1
        """The number of parts. Part n of N contains the n-th of N equal runs of the values of each tensor."""

    @property
    def sources(self) -> list[str]:
        """The names of the tensors in the files."""
        return [name for names in self._names.values() for name in names]

    def add(self, pattern: str, name: str) -> None:
        """Adds a tensor of the files, which a pattern of the conversion has matched."""
        self._names.setdefault(pattern, []).append(name)

    def complete(self) -> None:
        """Computes shapes and parts from the shapes in the files. Raises one of `CONVERSION_ERRORS`."""
        metas = {name: torch.empty(self._files.form(name)[1], device="meta") for name in self.sources}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._convert(self._names, metas).items()}
        num_names = {len(names) for names in self._names.values()}
        if len(num_names) == 1 and _stacks_rows(self._transform):
            self.num_parts = num_names.pop()

    def part(self, index: int) -> dict[str, Tensor]:
        """Reads and converts a part. The tensors may be views of the mapped files; do not write to them."""
        names = self._names if self.num_parts == 1 else {key: [own[index]] for key, own in self._names.items()}
        return self._convert(names, {name: self._files.tensor(name) for own in names.values() for name in own})

    def _convert(self, names: Mapping[str, list[str]], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        transform = deepcopy(self._transform)
        for pattern, own in names.items():
            for name in own:
                # The conversion frees each tensor as soon as it can.
                transform.add_tensor(self._target, name, pattern, tensors.pop(name))
        converted = transform.convert(self._target, model=self._lm, config=self._lm.config)
        return {name: value[0] if isinstance(value, list) else value for name, value in converted.items()}


def _stacks_rows(transform: Any) -> bool:
    """Returns whether each row of the result depends only on one tensor of the files for each pattern."""
    from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose

    first, *others = getattr(transform, "operations", None) or [None]
    return (
        isinstance(first, MergeModulelist)
        and first.dim == 0
        and all(
            (isinstance(other, Concatenate) and other.dim > 0)
            or (isinstance(other, Transpose) and min(other.dim0, other.dim1) > 0 and not other.check_dims)
            for other in others
        )
    )


class ConvertedTensors:
    """The tensors of a model that its files contain, in groups."""

    def __init__(self, lm: Any, files: WeightFiles) -> None:
        """`lm` is the model on the meta device. Raises one of `CONVERSION_ERRORS` for files of another form."""
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key

        mapping = get_model_conversion_mapping(lm)
        converters = [transform for transform in mapping if isinstance(transform, WeightConverter)]
        by_pattern = {pattern: converter for converter in converters for pattern in converter.source_patterns}
        renamings = [transform for transform in mapping if isinstance(transform, WeightRenaming)]
        own = lm.state_dict()
        groups: dict[str, TensorGroup] = {}
        # In this order transformers stacks tensors, and applies renamings that depend on earlier ones.
        for name in sorted(files.names, key=dot_natural_key):
            target, pattern = _renamed(name, renamings, converters, lm.base_model_prefix, own)
            if target not in own:
                continue
            if target not in groups:
                transform = WeightRenaming(name, target) if pattern is None else by_pattern[pattern]
                groups[target] = TensorGroup(transform, target, lm, files)
            groups[target].add(pattern or name, name)
        self._group_of: dict[str, TensorGroup] = {}
        for group in groups.values():
            group.complete()
            self._group_of |= dict.fromkeys(group.shapes, group)

    def __contains__(self, name: str) -> bool:
        return name in self._group_of

    def __iter__(self) -> Iterator[TensorGroup]:
        return iter(dict.fromkeys(self._group_of.values()))

    def group_of(self, name: str) -> TensorGroup:
        """Returns the group that makes a tensor of the model."""
        return self._group_of[name]

    def equal(self, name: str, other: str) -> bool:
        """Returns whether two tensors of the model have the same values. Reads both."""
        mine, its = self._group_of[name], self._group_of[other]
        if mine.num_parts != its.num_parts:
            return False
        parts = ((mine.part(index)[name], its.part(index)[other]) for index in range(mine.num_parts))
        return all(torch.equal(one, another) for one, another in parts)


def _renamed(
    name: str, renamings: list[Any], converters: list[Any], prefix: str, own: Mapping[str, Any]
) -> tuple[str, str | None]:
    """Returns the model's name for a tensor of the files, and the pattern of the converter that makes it, if any."""
    from transformers.core_model_loading import rename_source_key

    renamed: tuple[str, str | None] = rename_source_key(name, renamings, converters, prefix, own)
    if renamed[0] not in own and name in own:
        renamed = rename_source_key(name, [], [], prefix, own)
    return renamed

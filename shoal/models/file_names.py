"""The tensors of a model's files, if transformers names or divides the parameters differently.

transformers keeps all experts of a layer in one parameter, and the files have a matrix for each expert. vLLM's loader
expects the names in the files. For example, this loader does not know transformers' names for the experts of Mixtral.
So a publish sends the tensors of the files.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from shoal.errors import InvalidArgument

if TYPE_CHECKING:
    from torch import Tensor


class FileNames:
    """Turns the parameters of a language model of transformers into the tensors of its files."""

    def __init__(self, lm: Any, names: Collection[str] | None = None) -> None:
        """`names` are the names of the tensors in the files that the model was loaded from.

        Without them the result depends only on the kind of the model, so learner and generator agree. If some files of
        a kind have a prefix and others do not, transformers' prefix stays; vLLM takes both.
        """
        from transformers.conversion_mapping import get_model_conversion_mapping
        from transformers.core_model_loading import PrefixChange

        self._name = type(lm).__name__
        mapping = get_model_conversion_mapping(lm, add_legacy=names is not None)
        if names is None:
            conversions = [conversion for conversion in mapping if not isinstance(conversion, PrefixChange)]
        else:
            conversions = _used(mapping, names)
        # The rest of a model is not needed to convert its tensors.
        self._model = SimpleNamespace(_weight_conversions=conversions or None, config=lm.config)

    def shapes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Returns name and shape of each tensor of the files, in the order of `tensors`.

        `shapes` are the parameters' shapes. Raises `InvalidArgument` if one tensor of the files is several parameters.
        """
        import torch

        found: dict[str, tuple[int, ...]] = {}
        for name, shape in shapes.items():
            for file_name, tensor in self._converted(name, torch.empty(shape, device="meta")):
                if file_name in found:
                    raise InvalidArgument(
                        f"model.path: {self._name} cannot be trained: the model's files combine several parameters, "
                        f"including {name}, into one tensor, {file_name}"
                    )
                found[file_name] = tuple(tensor.shape)
        return found

    def tensors(self, parameters: "Iterable[tuple[str, Tensor]]") -> "Iterator[tuple[str, Tensor]]":
        """Yields the tensors of the files for whole parameters by name, one parameter at a time."""
        for name, parameter in parameters:
            yield from self._converted(name, parameter)

    def _converted(self, name: str, parameter: "Tensor") -> "Iterator[tuple[str, Tensor]]":
        from transformers.core_model_loading import revert_weight_conversion

        if self._model._weight_conversions is None:
            yield name, parameter
        else:
            yield from revert_weight_conversion(self._model, {name: parameter}).items()


def _used(conversions: list[Any], names: Collection[str]) -> list[Any]:
    """Returns the conversions that apply to these tensors; transformers marks a conversion when it renames a tensor."""
    from transformers.core_model_loading import WeightConverter, rename_source_key

    converters = [conversion for conversion in conversions if isinstance(conversion, WeightConverter)]
    renamings = [conversion for conversion in conversions if not isinstance(conversion, WeightConverter)]
    for name in names:
        rename_source_key(name, renamings, converters)
    return [conversion for conversion in conversions if conversion.was_used()]

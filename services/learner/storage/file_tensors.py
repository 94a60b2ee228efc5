"""The tensors of a model, with the names and the forms in the model's files.

transformers renames and fuses tensors while it loads some models (the experts of a mixture become one tensor), and can
reverse this. Every other program, and earlier versions of transformers, know only the names in the files.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from services.learner.engine.converted_tensors import CONVERSION_ERRORS
from services.learner.model.weights import list_weights
from services.learner.storage.weights_folder import Form, Forms, uniform
from shoal.error_reasons import ErrorReason
from shoal.errors import FailedPrecondition
from shoal.models.file_names import FileNames
from shoal.models.weight_files import WeightFiles, find_weight_files

NamedTensors = Iterable[tuple[str, Tensor]]


class FileTensors:
    """Turns a model's parameters into the tensors of the model's files, and adds the tensors that are not trained.

    The source's files may contain more than parameters: buffers such as the balance of a router's experts, and layers
    that transformers leaves out. Such tensors are not changed.
    """

    def __init__(self, lm: Any, dtype: torch.dtype, source: Path) -> None:
        """`source` is the folder of the loaded model. Tensors of lower precision get the type `dtype`.

        Raises `FailedPrecondition` for unreadable files, and for a model that transformers cannot convert back.
        """
        self._lm = lm
        try:
            self._source = WeightFiles(find_weight_files(source))
            self._names = FileNames(lm, self._source.names or None)
            weights = list_weights(lm)
            in_float32 = self._names.shapes({weight.name: weight.shape for weight in weights if weight.is_float32})
            shapes = self._names.shapes({weight.name: weight.shape for weight in weights})
            own = {**uniform(shapes, dtype), **uniform(in_float32, torch.float32)}
            tied = self._names.shapes(dict.fromkeys(_tied(lm), ()))
        except (OSError, SafetensorError, *CONVERSION_ERRORS) as error:
            raise _not_exported(lm, f"{type(error).__name__}: {error}") from error
        unknown = [name for name in own if name not in self._source]
        self._check_forms(own, unknown)
        others = {} if unknown else self._forms_without({*own, *tied})
        # The widest types come first, so each tensor begins at a multiple of its type's size.
        self._before = {name: form for name, form in others.items() if form.dtype.itemsize > dtype.itemsize}
        self._after = {name: form for name, form in others.items() if name not in self._before}
        self.forms: Forms = {**self._before, **own, **self._after}
        """Shape and type of each tensor that `stream` yields, in the same order."""

    def stream(self, tensors: NamedTensors) -> Iterator[tuple[str, Tensor]]:
        """Yields the tensors of the files, made from the model's tensors, one at a time."""
        yield from ((name, self._source.tensor(name)) for name in self._before)
        yield from self._names.tensors(tensors)
        yield from ((name, self._source.tensor(name)) for name in self._after)

    def _forms_without(self, names: set[str]) -> dict[str, Form]:
        others = ((name, self._source.tensor(name)) for name in self._source.names if name not in names)
        forms = {name: Form(tuple(tensor.shape), tensor.dtype) for name, tensor in others}
        return dict(sorted(forms.items(), key=lambda item: -item[1].dtype.itemsize))

    def _check_forms(self, own: Forms, unknown: list[str]) -> None:
        for name, form in own.items():
            if name in self._source and (shape := self._source.form(name)[1]) != form.shape:
                raise _not_exported(
                    self._lm,
                    f"the model's files have {name} with shape {list(shape)}, but transformers would write "
                    f"{list(form.shape)}",
                )
        if unknown and (buffers := list(_saved_buffers(self._lm))):
            raise _not_exported(
                self._lm,
                f"the model's files have no tensor {unknown[0]}, so {buffers[0]}, which is not trained, cannot be "
                "taken from the files; save the model with transformers' save_pretrained",
            )


def _not_exported(lm: Any, why: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"model.path: the weights of {type(lm).__name__} cannot be written in the form of the model's files: {why}",
        reason=ErrorReason.NOT_EXPORTED,
    )


def _tied(lm: Any) -> list[str]:
    """Lists the names of parameters that are tied to another parameter, and have no value of their own."""
    own = {name for name, _ in lm.named_parameters()}
    tied = [name for name, _ in lm.named_parameters(remove_duplicate=False) if name not in own]
    return [name.replace(".base_layer.", ".") for name in tied]


def _saved_buffers(lm: nn.Module) -> Iterator[str]:
    for path, module in lm.named_modules():
        for name in module._buffers.keys() - module._non_persistent_buffers_set:
            yield f"{path}.{name}"

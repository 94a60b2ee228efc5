"""A stand-in for torchvision in the processes of an engine, if torchvision is not installed.

vLLM's modules of models that can read images import transformers' image processors, which import torchvision, even if
only text is computed. torchvision is not installed beside a CPU build of torch.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_PACKAGE = "torchvision"


class _Absent(type):
    """The type of everything that the stand-in contains: a class with any attribute, of which there is no instance."""

    def __getattr__(cls, name: str) -> "_Absent":
        return _absent(cls.__module__, f"{cls.__qualname__}.{name}")

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        raise ImportError(f"{cls.__module__}.{cls.__qualname__} was called, but torchvision is not installed")


def _absent(module: str, name: str) -> _Absent:
    if name.rpartition(".")[2].startswith("__"):
        raise AttributeError(f"the stand-in for {module} has no {name}")
    return _Absent(name, (), {"__module__": module, "__qualname__": name})


class _StandIn(MetaPathFinder, Loader):
    """Makes torchvision and all its modules. Each name in such a module is an `_Absent`."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != _PACKAGE:
            return None
        return ModuleSpec(name, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        vars(module)["__version__"] = "0"
        vars(module)["__getattr__"] = lambda name: _absent(module.__name__, name)


def stand_in_for_torchvision() -> None:
    """Makes torchvision importable if it is not installed. An installed torchvision is always used instead."""
    if not any(isinstance(finder, _StandIn) for finder in sys.meta_path):
        # Python asks the last finder only about modules that no other finder knows.
        sys.meta_path.append(_StandIn())

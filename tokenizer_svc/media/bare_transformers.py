"""Bare transformers: imports single modules of transformers without its lists of all models and of all installed packages.

`import transformers` reads the source of each of its 1,600 modules, three times, for names that media processes do not need,
and the list of files of each installed package: 0.8 s of CPU time. Here transformers' packages are empty, and only the modules
are read that are imported by their full names, and theirs.
"""

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from functools import wraps
from types import ModuleType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_T = TypeVar("_T")

_PACKAGE, _MODELS, _UTILITIES = "transformers", "transformers.models", "transformers.utils"
_IMPORTED_AGAIN = ("transformers", "tetrad.")


def with_bare_transformers(make: Callable[_P, _T]) -> Callable[_P, _T]:
    """Let a function import modules of transformers quickly, the first ones of this process.

    Another version of transformers may not allow it: the function then runs a second time, with the whole package.
    """

    @wraps(make)
    def made(*args: _P.args, **kwargs: _P.kwargs) -> _T:
        others = set(sys.modules)
        try:
            _use_bare_transformers()
            return make(*args, **kwargs)
        except (ImportError, AttributeError):
            for name in set(sys.modules) - others:
                if name.startswith(_IMPORTED_AGAIN):
                    del sys.modules[name]
            return make(*args, **kwargs)

    return made


def _use_bare_transformers() -> None:
    package = _empty(_PACKAGE)
    package.__version__ = importlib.metadata.version(_PACKAGE)  # type: ignore[attr-defined]
    package.__getattr__ = _of_utilities  # type: ignore[method-assign]
    package.models = _empty(_MODELS)  # type: ignore[attr-defined]
    utilities = _import_utilities()
    # With this, processing_utils would run the package's own code.
    utilities.direct_transformers_import = lambda _path: package  # type: ignore[attr-defined]


def _empty(name: str) -> ModuleType:
    """Put a package into `sys.modules` whose modules can be imported, and whose own code does not run."""
    spec = importlib.util.find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    return package


def _import_utilities() -> ModuleType:
    """Import the utilities, which then look for a distribution under the name of its package."""
    listed, importlib.metadata.packages_distributions = importlib.metadata.packages_distributions, dict
    try:
        return importlib.import_module(_UTILITIES)
    finally:
        importlib.metadata.packages_distributions = listed


def _of_utilities(name: str) -> object:
    """Return what a module of transformers imports from the package itself: a function of its utilities."""
    try:
        return getattr(importlib.import_module(_UTILITIES), name)
    except AttributeError:
        raise AttributeError(f"module {_PACKAGE!r} has no attribute {name!r}", name=name) from None

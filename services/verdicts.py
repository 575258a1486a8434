"""Verdicts: state for each of vLLM's arguments without a meaning in Tetrad whether it is ignored or refused, and why.

Used only in the caller's process; `tools/vllm_page.py` writes the same verdicts into docs/vllm.md. An argument whose value
cannot change an answer is ignored. One whose value would change it is refused, unless the value is the default behaviour.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from tetrad.services.errors import UnsupportedArgument

F = TypeVar("F", bound=Callable[..., Any])

_KEY = "verdict"


@dataclass(frozen=True)
class Verdict:
    """The verdict on one argument.

    Attributes:
        kind: "ignored": any value is accepted, without effect; "refused": a value other than `default` and `others` raises;
            "renamed": the value is passed to another argument.
        default: vLLM's default value.
        why: the reason as a sentence, for the error and for the page.
        others: further values that a refused argument may have, since they request Tetrad's own behaviour.
    """

    kind: Literal["ignored", "refused", "renamed"]
    default: Any
    why: str
    others: tuple[Any, ...] = ()

    def check(self, name: str, value: object) -> None:
        """Raise UnsupportedArgument, which states the reason, if the argument may not have this value."""
        if self.kind != "refused" or any(_is(value, known) for known in (self.default, *self.others)):
            return
        # Some callers pass an empty container for "no value".
        if not self.default and isinstance(value, dict | list | set | tuple) and not value:
            return
        text = f"{name}={value!r} is not supported: {self.why} Leave it at {self.default!r}."
        raise UnsupportedArgument(text, field=name)


def ignored(default: Any, why: str) -> Verdict:
    """Return the verdict of an argument that cannot change an answer."""
    return Verdict("ignored", default, why)


def refused(default: Any, why: str, *others: Any) -> Verdict:
    """Return the verdict of an argument for behaviour that Tetrad does not have; `others` are values that are still allowed."""
    return Verdict("refused", default, why, others)


def renamed(why: str) -> Verdict:
    """Return the verdict of an argument that has another name in Tetrad; the class with the argument passes the value on."""
    return Verdict("renamed", None, why)


def argument(verdict: Verdict) -> Any:
    """Return a dataclass field with this verdict."""
    default = verdict.default
    if isinstance(default, dict | list | set):
        return field(default_factory=lambda: type(default)(default), metadata={_KEY: verdict}, kw_only=True, repr=False)
    return field(default=default, metadata={_KEY: verdict}, kw_only=True, repr=False)


def verdicts_of(cls: type) -> dict[str, Verdict]:
    """Return the verdicts of a dataclass's fields, by their names."""
    fields: dict[str, Any] = getattr(cls, "__dataclass_fields__", {})
    return {name: each.metadata[_KEY] for name, each in fields.items() if _KEY in each.metadata}


def takes(**verdicts: Verdict) -> Callable[[F], F]:
    """Return a decorator that lets a method accept further keyword arguments, which are checked and not passed on."""

    def decorate(method: F) -> F:
        @functools.wraps(method)
        def checked(*args: Any, **kwargs: Any) -> Any:
            for name, verdict in verdicts.items():
                if name in kwargs:
                    verdict.check(name, kwargs.pop(name))
            return method(*args, **kwargs)

        signature = inspect.signature(method)
        further = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each.default) for name, each in verdicts.items()
        ]
        checked.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *further])  # type: ignore[attr-defined]
        checked.verdicts = verdicts  # type: ignore[attr-defined]
        return checked  # type: ignore[return-value]

    return decorate


def missing(name: str, why: str) -> Any:
    """Return a method that raises UnsupportedArgument with this reason."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        del args, kwargs
        raise UnsupportedArgument(f"{name} is not supported: {why}", field=name)

    refuse.__name__ = refuse.__qualname__ = name
    refuse.__doc__ = f"Raise UnsupportedArgument, a NotImplementedError: {why}"
    refuse.why_missing = why  # type: ignore[attr-defined]
    return refuse


def _is(value: object, known: object) -> bool:
    return value is known or (type(value) is type(known) and bool(value == known))

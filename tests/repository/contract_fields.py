"""Contract fields: finds the fields of tetrad.v1's messages that the code reads and writes.

mypy gives the type of every expression in the files that use messages, so fields of the same name are distinguished by their
messages. Calls of stubs have no type: a field of an answer counts as read if the code reads an attribute of its name from any
untyped value.
"""

import importlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from mypy import build, nodes, options
from mypy.modulefinder import BuildSource
from mypy.types import AnyType, Instance, Type, UnionType, get_proper_type

ROOT = Path(__file__).parents[2]
FILES = ("engine_core", "inference", "tokenizer", "types", "worker")
PROGRAMS = ("services", "frontend", "tokenizer_svc", "engine_core_svc", "worker_svc", "tetrad")

Field = tuple[str, str]
"""Names of a message and of a field."""


@dataclass
class Uses:
    """The fields that the code reads and writes; `any_reads` has the names of attributes read from untyped values."""

    reads: set[Field] = field(default_factory=set)
    writes: set[Field] = field(default_factory=set)
    any_reads: set[str] = field(default_factory=set)


@cache
def messages() -> dict[str, Descriptor]:
    """Return the messages of the contracts by name."""
    modules = [importlib.import_module(f"tetrad.v1.{name}_pb2") for name in FILES]
    return {name: found for module in modules for name, found in module.DESCRIPTOR.message_types_by_name.items()}


@cache
def answers() -> frozenset[str]:
    """Return the names of messages that no request contains."""
    modules = [importlib.import_module(f"tetrad.v1.{name}_pb2") for name in FILES]
    services: list[ServiceDescriptor] = [each for module in modules for each in module.DESCRIPTOR.services_by_name.values()]
    asked = {name for each in services for method in each.methods for name in _within(method.input_type)}
    return frozenset(messages().keys() - asked)


def _within(message: Descriptor) -> Iterator[str]:
    """Yield a message's name and those of all messages inside it."""
    seen, found = {message.full_name}, [message]
    while found:
        each = found.pop()
        yield each.name
        inside = {part.message_type.full_name: part.message_type for part in each.fields if part.message_type is not None}
        found += [part for name, part in inside.items() if name not in seen]
        seen |= inside.keys()


@cache
def uses() -> Uses:
    """Return the fields that the programs read and write."""
    found, types = Uses(), _typed_expressions()
    for expression, kind in types.items():
        _note(found, types, expression, kind)
    return found


def _typed_expressions() -> dict[nodes.Expression, Type]:
    """Return all expressions of the files that know messages, with their types. Takes about 4 s."""
    choices = options.Options()
    choices.follow_imports, choices.cache_dir, choices.python_version = "skip", "/dev/null", (3, 11)
    choices.export_types, choices.incremental, choices.ignore_missing_imports = True, False, True
    listed = subprocess.run(
        ["git", "grep", "-l", "--untracked", "-E", "tetrad.v1|_pb2", "--", *(f"{room}/*.py" for room in PROGRAMS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    code = [
        ROOT / name
        for name in listed.stdout.split()
        if not name.startswith(("tetrad/v1/", "tetrad/vllm_api/", "tetrad/openengine_api/"))
    ]
    stubs = sorted((ROOT / "tetrad" / "v1").glob("*_pb2.pyi"))
    result = build.build([BuildSource(str(path), _module_of(path)) for path in [*code, *stubs]], choices)
    return result.types


def _module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "tetrad" else ("tetrad", *parts)).removesuffix(".__init__")


def _note(found: Uses, types: dict[nodes.Expression, Type], expression: nodes.Expression, kind: Type) -> None:
    if isinstance(expression, nodes.MemberExpr):
        base = types.get(expression.expr)
        found.reads.update((name, expression.name) for name in _messages_in(base))
        if isinstance(get_proper_type(base), AnyType):
            found.any_reads.add(expression.name)
    elif isinstance(expression, nodes.CallExpr):
        callee = expression.callee
        if isinstance(callee, nodes.MemberExpr) and callee.name in ("HasField", "WhichOneof"):
            found.reads.update(_named_fields(types.get(callee.expr), expression.args[0]))
        found.writes.update((name, given) for name in _messages_in(kind) for given in expression.arg_names if given)


def _named_fields(base: Type | None, argument: nodes.Expression) -> Iterator[Field]:
    """Yield the fields that HasField("field") or WhichOneof("oneof") asks for."""
    if isinstance(argument, nodes.StrExpr):
        for name in _messages_in(base):
            oneof = messages()[name].oneofs_by_name.get(argument.value)
            yield from ((name, part.name) for part in oneof.fields) if oneof else [(name, argument.value)]


def _messages_in(kind: Type | None) -> Iterator[str]:
    """Yield the names of the messages that a type stands for."""
    proper = get_proper_type(kind)
    if isinstance(proper, UnionType):
        for item in proper.items:
            yield from _messages_in(item)
    elif isinstance(proper, Instance) and proper.type.fullname.startswith("tetrad.v1.") and proper.type.name in messages():
        yield proper.type.name

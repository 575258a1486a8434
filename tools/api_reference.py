"""Writes docs/api-reference.md from the comments in protos/tetrad/v1: `python tools/api_reference.py > docs/api-reference.md`.

It uses descriptors; the comments of the contracts are the page's text. A test compares the page with this output.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

ROOT = Path(__file__).parents[1]
PACKAGE = "tetrad.v1"
# The files that clients use come first.
FILES = ("inference", "tokenizer", "engine_core", "worker", "types")
_INTRODUCTION = """# API reference

Written by `tools/api_reference.py` from the comments in [protos/tetrad/v1](../protos/tetrad/v1). Conventions, errors and what
may change: [contracts.md](contracts.md). `opt` marks fields whose absence differs from their zero.
"""
# Field numbers of descriptor.proto, of which the paths of comments consist.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_METHODS = _FIELDS = _VALUES = 2
_NESTED_MESSAGES, _NESTED_ENUMS = 3, 4

Path_ = tuple[int, ...]


class Page:
    """The page's part about one file.

    Args:
        file: descriptor of the file, with source info (comments).
    """

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments = {tuple(each.path): each for each in file.source_code_info.location}

    def lines(self) -> Iterator[str]:
        """Yield Markdown: services, then messages and enums in the order of the file."""
        name = Path(self._file.name).name
        yield f"\n## {name}\n\n{self._introduction()}"
        for i, service in enumerate(self._file.service):
            yield from self._service(service, (_SERVICES, i))
        for i, message in enumerate(self._file.message_type):
            yield from self._message(message, message.name, (_MESSAGES, i))
        for i, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, enum.name, (_ENUMS, i))

    def _service(self, service: ServiceDescriptorProto, path: Path_) -> Iterator[str]:
        yield f"\n### {service.name}\n\n{self._said_of(path)}\n\n| method | takes | returns | |\n|---|---|---|---|"
        for i, method in enumerate(service.method):
            takes = _type_link(method.input_type, streams=method.client_streaming)
            returns = _type_link(method.output_type, streams=method.server_streaming)
            yield f"| `{method.name}` | {takes} | {returns} | {self._said_of((*path, _METHODS, i))} |"

    def _message(self, message: DescriptorProto, name: str, path: Path_) -> Iterator[str]:
        yield f"\n### {name}\n"
        if said := self._said_of(path):
            yield said + "\n"
        entries = {each.name for each in message.nested_type if each.options.map_entry}
        if message.field:
            yield "| # | field | type | |\n|---|---|---|---|"
        for i, field in enumerate(message.field):
            said = self._said_of((*path, _FIELDS, i))
            yield f"| {field.number} | `{field.name}` | {_type_of(field, message)} | {said} |"
        for i, nested in enumerate(message.nested_type):
            if nested.name not in entries:
                yield from self._message(nested, f"{name}.{nested.name}", (*path, _NESTED_MESSAGES, i))
        for i, enum in enumerate(message.enum_type):
            yield from self._enum(enum, f"{name}.{enum.name}", (*path, _NESTED_ENUMS, i))

    def _enum(self, enum: EnumDescriptorProto, name: str, path: Path_) -> Iterator[str]:
        yield f"\n### {name}\n"
        if said := self._said_of(path):
            yield said + "\n"
        yield "| # | value | |\n|---|---|---|"
        for i, value in enumerate(enum.value):
            yield f"| {value.number} | `{value.name}` | {self._said_of((*path, _VALUES, i))} |"

    def _introduction(self) -> str:
        # The file's comment is detached from or attached to the syntax statement, which has number 12.
        location = self._comments.get((12,))
        return _one_line("" if location is None else "".join(location.leading_detached_comments) + location.leading_comments)

    def _said_of(self, path: Path_) -> str:
        location = self._comments.get(path)
        return "" if location is None else _one_line(location.leading_comments + location.trailing_comments)


def _type_of(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    entries = {each.name: each for each in message.nested_type if each.options.map_entry}
    if entry := entries.get(field.type_name.rpartition(".")[2]):
        key, value = (_plain_type(each) for each in entry.field)
        return f"map of {key} to {value}"
    kind = _plain_type(field)
    if field.proto3_optional:
        return f"{kind} opt"
    if field.HasField("oneof_index"):
        return f"{kind}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return f"{kind}[]" if field.label == FieldDescriptorProto.LABEL_REPEATED else kind


def _plain_type(field: FieldDescriptorProto) -> str:
    if field.type_name:
        return _type_link(field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _type_link(full_name: str, *, streams: bool = False) -> str:
    name = full_name.removeprefix(".")
    prefix = "stream of " if streams else ""
    if not name.startswith(PACKAGE + "."):
        return f"{prefix}`{name}`"
    short = name.removeprefix(PACKAGE + ".")
    return f"{prefix}[{short}](#{short.lower().replace('.', '')})"


def _one_line(comment: str) -> str:
    return " ".join(comment.split()).replace("|", "\\|")


def read_files() -> list[FileDescriptorProto]:
    """Return the descriptors of the contracts, comments included."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "contracts"
        names = [f"tetrad/v1/{name}.proto" for name in FILES]
        call = [sys.executable, "-m", "grpc_tools.protoc", "-Iprotos", "--include_source_info", f"--descriptor_set_out={out}"]
        subprocess.run([*call, *names], cwd=ROOT, check=True)
        files = {file.name: file for file in FileDescriptorSet.FromString(out.read_bytes()).file}
        return [files[name] for name in names]


def render() -> str:
    """Return the page."""
    return "\n".join([_INTRODUCTION.rstrip(), *(line for file in read_files() for line in Page(file).lines())]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())

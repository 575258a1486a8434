"""Every field of the contracts is read by code, or listed in unread_fields.py with the reason."""

import importlib

import pytest

from tests.repository.contract_fields import answers, messages, uses
from tests.repository.unread_fields import OTHERS_READ, REFUSED, UNREAD
from tetrad.services.rpc.unread_fields import UnreadFields

# Set by keyword expansion of a value's fields.
WRITTEN_AT_ONCE = {"ModelInfo"}
DECODERS = (
    "tetrad.engine_core_svc.engine.submission_wire",
    "tetrad.engine_core_svc.core.media_wire",
    "tetrad.worker_svc.api.wire",
    "tetrad.worker_svc.api.kv_transfer_wire",
    "tetrad.worker_svc.api.pooling_wire",
    "tetrad.worker_svc.api.lifecycle",
    "tetrad.tokenizer_svc.api.wire",
    "tetrad.frontend.api.grpc.servicer",
    "tetrad.frontend.api.grpc.chat_bodies",
    "tetrad.frontend.api.grpc.sampling_fields",
)
LISTS = [
    pytest.param(each, id=f"{module.rpartition('_svc.')[2]}.{each.message_name}")
    for module in DECODERS
    for each in vars(importlib.import_module(module)).values()
    if isinstance(each, UnreadFields)
]


def listed(reason: str) -> set[str]:
    """Return the fields that the table lists for a reason."""
    found = set()
    for entry in UNREAD[reason].split():
        message, _, name = entry.partition(".")
        found |= {f"{message}.{each.name}" for each in messages()[message].fields} if name == "*" else {entry}
    return found


def refused() -> set[str]:
    """Return the fields that services refuse. The public API refuses some that its frontend sets itself."""
    found = {f"{each.values[0].message_name}.{name}" for each in LISTS for name in each.values[0].names}
    return {entry for entry in found if not entry.startswith("SamplingParams.")}


def unread() -> set[str]:
    """Return the fields that code only refuses."""
    found, answered = uses(), answers()
    return refused() | {
        f"{message}.{field.name}"
        for message, descriptor in messages().items()
        for field in descriptor.fields
        if (message, field.name) not in found.reads and not (message in answered and field.name in found.any_reads)
    }


def test_each_field_that_no_code_reads_has_one_reason():
    entries = [entry for reason in UNREAD for entry in listed(reason)]

    assert sorted(entries) == sorted(set(entries))
    assert unread() - set(entries) == set(), "say in unread_fields.py why no code reads them"


def test_no_field_is_listed_that_code_reads():
    whole = {entry.partition(".")[0] for text in UNREAD.values() for entry in text.split() if entry.endswith(".*")}
    named = {entry for text in UNREAD.values() for entry in text.split() if not entry.endswith(".*")}

    assert named - unread() == set(), "code reads them now: take them out of unread_fields.py"
    assert [name for name in whole if not any(f"{name}.{field.name}" in unread() for field in messages()[name].fields)] == []


def test_what_others_read_is_written():
    written = {f"{message}.{name}" for message, name in uses().writes}

    assert {entry for entry in listed(OTHERS_READ) - written if entry.partition(".")[0] not in WRITTEN_AT_ONCE} == set()


def test_what_is_listed_as_refused_is_what_the_services_refuse():
    assert listed(REFUSED) == refused()


@pytest.mark.parametrize("fields", LISTS)
def test_an_unread_field_is_refused_by_its_name(fields):
    descriptor = messages()[fields.message_name]

    for name in fields.names:
        message = _with(descriptor, name)
        error = fields.error_of(message)
        assert error is not None
        assert error.field == name
        assert name in error.message
    assert fields.error_of(_message_class(descriptor)()) is None


def _message_class(descriptor):
    return getattr(
        importlib.import_module(descriptor.file.name.removesuffix(".proto").replace("/", ".") + "_pb2"), descriptor.name
    )


def _with(descriptor, name):
    """Return a message that sets one field, to a value that is not its zero."""
    message, field = _message_class(descriptor)(), descriptor.fields_by_name[name]
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, name)["x"] = 1
    elif field.is_repeated:
        values = getattr(message, name)
        values.add() if field.message_type is not None else values.append("x" if field.cpp_type == field.CPPTYPE_STRING else 1)
    elif field.message_type is not None:
        getattr(message, name).SetInParent()
    elif field.cpp_type == field.CPPTYPE_STRING:
        setattr(message, name, b"x" if field.type == field.TYPE_BYTES else "x")
    else:
        setattr(message, name, True if field.type == field.TYPE_BOOL else 1)
    return message

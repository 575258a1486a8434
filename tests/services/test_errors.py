"""Errors keep their class, message and details over real gRPC."""

import pytest
from google.rpc import status_pb2

from tetrad.services import errors
from tetrad.services.errors import InternalError, InvalidRequest, Overloaded, PromptTooLong
from tetrad.services.rpc.status import from_status, to_status

CLASSES = [
    errors.InvalidRequest,
    errors.PromptTooLong,
    errors.Unauthenticated,
    errors.PermissionDenied,
    errors.NotFound,
    errors.AlreadyExists,
    errors.FailedPrecondition,
    errors.ModelError,
    errors.Overloaded,
    errors.DeadlineExceeded,
    errors.Unavailable,
    errors.Unsupported,
    errors.InternalError,
    errors.PoisonousRequest,
]


@pytest.mark.parametrize("cls", CLASSES)
async def test_a_client_gets_the_class_that_the_handler_raised(serve, cls):
    async def fail(request):
        raise cls("what is wrong, and what to do")

    client, _ = await serve(fail)

    with pytest.raises(cls, match="what is wrong, and what to do") as caught:
        await client.unary()
    assert type(caught.value) is cls


async def test_field_reason_metadata_and_retry_time_arrive(serve):
    async def fail(request):
        raise Overloaded("full", field="prompt", reason="QUEUE_FULL", metadata={"queued": "7"}, retry_after_s=1.5)

    client, _ = await serve(fail)

    with pytest.raises(Overloaded) as caught:
        await client.unary()
    error = caught.value
    assert (error.field, error.reason, error.metadata, error.retry_after_s) == ("prompt", "QUEUE_FULL", {"queued": "7"}, 1.5)


def test_the_reason_that_earlier_releases_have_for_a_prompt_that_is_too_long_is_understood():
    error = from_status(to_status(PromptTooLong("too long", reason="PROMPT_TOO_LONG")))

    assert (type(error), error.reason) == (PromptTooLong, "CONTEXT_LENGTH_EXCEEDED")


async def test_a_stream_delivers_what_came_before_its_error(serve):
    async def fail(request):
        raise PromptTooLong("too long")

    client, _ = await serve(fail)

    received, error = await client.stream()

    assert received == [b"first"]
    assert type(error) is PromptTooLong


async def test_a_bug_is_answered_without_its_inner_text(serve):
    async def fail(request):
        raise KeyError("a secret")

    client, _ = await serve(fail)

    with pytest.raises(InternalError) as caught:
        await client.unary()
    assert "secret" not in caught.value.message


async def test_an_error_of_one_call_leaves_the_next_alone(serve):
    async def behave(request):
        if request == b"bad":
            raise InvalidRequest("bad")
        return b"good"

    client, _ = await serve(behave)

    with pytest.raises(InvalidRequest):
        await client.unary(b"bad")
    assert await client.unary(b"x") == b"good"


@pytest.mark.parametrize("cls", CLASSES)
def test_a_status_inside_a_message_round_trips(cls):
    error = from_status(to_status(cls("text", field="f")))

    assert (type(error), error.message, error.field) == (cls, "text", "f")


def test_a_code_outside_the_table_is_internal():
    assert type(from_status(status_pb2.Status(code=15, message="data loss"))) is InternalError


def test_a_detail_that_cannot_be_read_leaves_the_rest_of_its_status():
    status = to_status(InvalidRequest("text", field="f"))
    status.details[0].value = b"\xff\xff"

    error = from_status(status)

    assert (type(error), error.message, error.field) == (InvalidRequest, "text", "f")

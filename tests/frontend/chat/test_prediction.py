"""OpenAI's `prediction` in chat completions: the engine gets its tokens, and `usage` counts the accepted and rejected ones."""

import pytest

from tests.frontend.chat.asking import ask, stream
from tests.frontend.turns import writes
from tetrad.services.rpc.columns import unpack_u32

TEXT = "def add(a, b):\n    return a + b\n"
PREDICTED = "def add(a, b):\n    return a - b\n"


@pytest.mark.parametrize(
    "prediction",
    [
        {"type": "content", "content": PREDICTED},
        {"type": "content", "content": [{"type": "text", "text": PREDICTED[:9]}, {"type": "text", "text": PREDICTED[9:]}]},
    ],
    ids=["text", "parts"],
)
async def test_usage_tells_what_of_a_prediction_is_in_the_answer(serve_frontend, engine, prediction):
    writes(engine, TEXT)
    engine.tokens_per_step = 3
    async with serve_frontend() as frontend:
        whole = await ask(frontend, prediction=prediction)
        [*_, last] = await stream(frontend, prediction=prediction)

    details = whole["usage"]["completion_tokens_details"]
    assert last["usage"] == whole["usage"]
    assert unpack_u32(engine.requests[0].predicted_token_ids) == list(PREDICTED.encode())
    assert details["rejected_prediction_tokens"] == 1  # the minus
    assert details["accepted_prediction_tokens"] == len(PREDICTED) - 1


async def test_usage_says_nothing_without_a_prediction(serve_frontend, engine):
    writes(engine, TEXT)
    async with serve_frontend() as frontend:
        whole = await ask(frontend)

    assert whole["usage"]["completion_tokens_details"] == {"reasoning_tokens": 0}
    assert engine.requests[0].predicted_token_ids == b""


@pytest.mark.parametrize(
    ("prediction", "problem"),
    [({"type": "tool", "content": ""}, "prediction.type"), ({"type": "content"}, "prediction.content")],
)
async def test_a_wrong_prediction_is_refused_by_the_name_of_its_field(serve_frontend, engine, prediction, problem):
    async with serve_frontend() as frontend:
        body = {"messages": [{"role": "user", "content": "hi"}], "prediction": prediction}
        response = await frontend.http.post("/v1/chat/completions", json=body)

    assert response.status_code == 400
    assert problem in response.text

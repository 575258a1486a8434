"""The routes of the fast path, which answers as FastAPI does."""

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tetrad.frontend.api.http.middleware.fast_path import FastPath

router = APIRouter()


class RouteOfItsOwn(APIRoute):
    """A route that answers in another form."""


@router.post("/alone")
async def alone(request: Request) -> Response:
    body = await request.body()
    if body == b"wrong":
        raise ValueError("a value is wrong")
    if body == b"bug":
        raise ZeroDivisionError("a bug")
    return PlainTextResponse(f"{request.app.title} took {len(body)} bytes for {request.scope['route'].path_format}")


@router.post("/parameter")
async def with_parameter(request: Request, number: int = 1) -> Response:
    return PlainTextResponse(str(number))


@router.post("/things/{request}")
async def with_a_name_like_the_requests(request: str) -> Response:
    return PlainTextResponse(request)


@router.post("/dependency", dependencies=[Depends(lambda: None)])
async def with_dependency(request: Request) -> Response:
    return PlainTextResponse("")


async def of_its_own(request: Request) -> Response:
    return PlainTextResponse("")


router.add_api_route("/own", of_its_own, methods=["POST"], route_class_override=RouteOfItsOwn)


class Marking:
    """Marks what FastAPI answers."""

    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        async def mark(message):
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-way", b"long")]
            await send(message)

        await self.app(scope, receive, mark)


@pytest.fixture
async def client():
    app = FastAPI(title="Tetrad")
    app.add_middleware(Marking)
    app.include_router(router)

    async def on_wrong_value(_, error):
        return PlainTextResponse(str(error), status_code=400)

    async def on_bug(_, error):
        return PlainTextResponse(f"{type(error).__name__}", status_code=500)

    app.add_exception_handler(ValueError, on_wrong_value)
    app.add_exception_handler(Exception, on_bug)
    transport = httpx.ASGITransport(FastPath(app, router.routes), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as made:
        yield made


async def test_an_endpoint_that_takes_the_request_alone_is_called_past_fastapi(client):
    response = await client.post("/alone", content=b"abc")

    assert response.text == "Tetrad took 3 bytes for /alone"
    assert "x-way" not in response.headers


@pytest.mark.parametrize("path", ["/parameter", "/things/a", "/dependency", "/own", "/openapi.json", "/nowhere"])
async def test_whatever_asks_something_of_fastapi_is_its(client, path):
    response = await client.request("GET" if path == "/openapi.json" else "POST", path)

    assert response.status_code == (404 if path == "/nowhere" else 200)
    assert response.headers["x-way"] == "long"


async def test_another_method_is_refused_by_fastapi(client):
    response = await client.get("/alone")

    assert (response.status_code, response.headers["x-way"]) == (405, "long")


@pytest.mark.parametrize(("body", "status", "text"), [(b"wrong", 400, "a value is wrong"), (b"bug", 500, "ZeroDivisionError")])
async def test_errors_and_bugs_are_answered_by_the_applications_handlers(client, body, status, text):
    response = await client.post("/alone", content=body)

    assert (response.status_code, response.text) == (status, text)
    assert "x-way" not in response.headers

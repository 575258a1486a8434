"""Dialogues of several stored responses, each of which continues the one before, with a waiting client or in the background."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.combinations.asked import Client
from tests.combinations.compared import without_names
from tetrad.frontend.request.sampling_params import RequestOutputKind

_PATH = "/v1/responses"
_UNFINISHED = ("queued", "in_progress")


@dataclass(frozen=True)
class DialogueCall:
    """Bodies for /v1/responses, each a turn.

    Attributes:
        turns: the bodies, in their order.
        leaves_after: number of events after which a client that follows a background response connects again.
    """

    turns: Sequence[Mapping[str, Any]]
    leaves_after: int

    async def answer(self, client: Client, request_id: str, kind: RequestOutputKind | None = None) -> Any:
        """Return the answers to all turns, up to the first that fails; ids of responses are not the request's."""
        del request_id
        answers, previous = [], None
        for turn in self.turns:
            body = dict(turn) | ({} if previous is None else {"previous_response_id": previous})
            response = await self._respond(client, body, kind)
            answers.append(without_names(response))
            if response.get("error"):
                break
            previous = response["id"]
            stored = (await client.http.get(f"{_PATH}/{previous}")).json()
            assert stored == response, (stored, response)
        return answers

    async def _respond(self, client: Client, body: dict[str, Any], kind: RequestOutputKind | None) -> dict[str, Any]:
        match kind:
            case None:
                return (await client.http.post(_PATH, json=body)).json()
            case RequestOutputKind.CUMULATIVE:
                return await self._streamed(client, body | {"stream": True})
            case RequestOutputKind.DELTA:
                return await self._streamed(client, body | {"stream": True, "background": True})
        response = (await client.http.post(_PATH, json=body | {"background": True})).json()
        while response.get("status") in _UNFINISHED:
            await asyncio.sleep(0.02)
            response = (await client.http.get(f"{_PATH}/{response['id']}")).json()
        return response

    async def _streamed(self, client: Client, body: dict[str, Any]) -> dict[str, Any]:
        events: list[dict[str, Any]] = []
        async with client.http.stream("POST", _PATH, json=body) as answer:
            if answer.status_code != 200:
                return json.loads(await answer.aread())
            async for event in _events_of(answer.aiter_lines()):
                events.append(event)
                if "background" in body and len(events) > self.leaves_after:
                    break
        if "background" in body and events[-1]["type"] != "error":
            query = {"stream": True, "starting_after": events[-1]["sequence_number"]}
            async with client.http.stream("GET", f"{_PATH}/{events[0]['response']['id']}", params=query) as answer:
                assert answer.status_code == 200, await answer.aread()
                events += [event async for event in _events_of(answer.aiter_lines())]
        if events[-1]["type"] == "error":
            return {"error": {"message": events[-1]["message"]}}
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        return events[-1]["response"]


async def _events_of(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    async for line in lines:
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))

"""One random walk: a crowd of requests while an engine is disturbed in every way; each answer is that of the request alone."""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.combinations.asked import Asked, Client, difference, started
from tests.combinations.checkpoints import Checkpoint
from tests.combinations.drawing import Drawing
from tests.e2e.adapted_stack import Services, kill, restartable
from tetrad.frontend.access.guard import Guard
from tetrad.frontend.api.http.app import create_app
from tetrad.frontend.llm.model_directory import ModelDirectory
from tetrad.frontend.request.sampling_params import RequestOutputKind
from tetrad.services.errors import TetradError, Unavailable

MAX_MODEL_LEN = 256
WAIT_S = 120
CHANGE_VALUES = ("kv_cache_dtype", "cpu_kernels")
"""Settings of a worker that may change the last digits, and so tokens: they are the same alone."""
PROCESSOR = "tests.combinations.processors:Favourite"


@dataclass(frozen=True)
class Options:
    """Settings of an engine. All that are not given are those of an engine without limits."""

    engine_core: Mapping[str, Any]
    worker: Mapping[str, Any] = field(default_factory=dict)
    frontend: Mapping[str, Any] = field(default_factory=dict)


def draw_options(rng: random.Random, checkpoint: Checkpoint, parser: str) -> Options:
    """Return random settings that change no answer."""
    block_size = rng.choice([1, 2, 4, 8, 16, 32])
    choices: dict[str, list[Any]] = {
        "block_size": [block_size],
        "num_gpu_blocks_override": [_num_blocks(rng, checkpoint, block_size)],
        "max_num_batched_tokens": [17, 33, 64, 300, 2048],
        "max_num_seqs": [2, 5, 16],
        "enable_prefix_caching": [True, True, False],
        "long_prefill_token_threshold": [0, 0, 7],
        "scheduling_policy": ["fcfs", "priority"],
        "priority_order": ["high_first", "low_first"],
        "pipeline_depth": [None, 1, 2, 4],
        "swap_space": [0.0, 0.0, 0.002],
        "max_decode_slowdown": [0, 1.0, 1.5],
        "max_loras": [1, 2],
        "max_cpu_loras": [None, 2],
    }
    fields = {name: rng.choice(values) for name, values in choices.items()}
    if rng.random() < 0.1:
        fields |= {"enable_chunked_prefill": False, "max_num_batched_tokens": None, "long_prefill_token_threshold": 0}
    if not fields["enable_prefix_caching"]:
        fields["swap_space"] = 0.0
    if checkpoint.speculative_configs and rng.random() < 0.6:
        fields["speculative_config"] = json.dumps(rng.choice(checkpoint.speculative_configs))
    frontend = {"stream_interval": rng.choice([1, 1, 5]), "reasoning_parser": parser}
    if "eagle3" in fields.get("speculative_config", ""):
        return Options(_given(fields), {}, frontend)  # torch runs it, which has float32 alone
    worker = {"kv_cache_dtype": rng.choice(checkpoint.kv_cache_dtypes)}
    return Options(_given(fields), worker, frontend)


def _given(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _num_blocks(rng: random.Random, checkpoint: Checkpoint, block_size: int) -> int:
    """Return at least what one sequence needs."""
    return round((MAX_MODEL_LEN / block_size + 2) * rng.choice([1.1, 1.5, 3.0, 30]) * checkpoint.num_groups) + 2


@asynccontextmanager
async def client_of(checkpoint: Checkpoint, name: str, options: Options) -> AsyncIterator[tuple[Client, Services]]:
    """Run an engine with these settings."""
    adapters = tuple(f"{each.lora_name}={each.lora_path}" for each in checkpoint.adapters)
    frontend = {
        "served_model_names": ("base",),
        "lora_modules": adapters,
        "max_logprobs": -1,
        "tool_call_parser": "hermes",
        "responses_store": "none",
        "ready_timeout_s": 60.0,
        **options.frontend,
    }
    common = {"max_model_len": MAX_MODEL_LEN, "enable_lora": True, **checkpoint.engine}
    worker = {"logits_processors": (PROCESSOR,), **options.worker}
    fields = common | dict(options.engine_core)
    async with restartable(checkpoint.directory, name, frontend=frontend, worker=worker, **fields) as services:
        app = create_app(ModelDirectory.alone(services.llm), services.llm.settings, Guard(services.llm.settings))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", timeout=WAIT_S) as http:
            yield Client(services.llm, http), services


class Disturbances:
    """What happens to an engine during a walk, in a random order."""

    def __init__(self, rng: random.Random, client: Client, services: Services, walk: "Walk") -> None:
        self._rng, self._client, self._services = rng, client, services
        self._checkpoint, self._num_requests, self._drawing = walk.checkpoint, walk.num_requests, walk.drawing
        self.aborted: set[int] = set()
        self.open = asyncio.Event()  # unset while requests are refused
        self.open.set()
        self.log: list[str] = []
        self.aborted: set[int] = set()

    async def run(self, count: int) -> None:
        """Disturb so many times."""
        ways = [self._reset, self._pause, self._sleep, self._kill, self._adapters, self._refused, self._cancelled, self._abort]
        for _ in range(count):
            await asyncio.sleep(self._rng.choice([0, 0.02, 0.1]))
            way = self._rng.choice(ways)
            self.log.append(way.__name__)
            for _ in range(100):
                try:
                    await way()
                    break
                except Unavailable as error:
                    # An engine core that was killed starts again.
                    self.log.append(str(error))
                    await asyncio.sleep(0.1)

    async def _reset(self) -> None:
        await self._client.llm.engine_admin.reset_prefix_cache(reset_running_requests=self._rng.random() < 0.5)

    async def _pause(self) -> None:
        admin = self._client.llm.engine_admin
        await admin.pause(self._rng.choice(["keep", "wait"]), clear_cache=self._rng.random() < 0.5)
        await asyncio.sleep(0.03)
        await admin.resume()

    async def _sleep(self) -> None:
        self.open.clear()
        admin = self._client.llm.engine_admin
        await admin.sleep(self._rng.choice([0, 1]), "keep")
        await asyncio.sleep(0.03)
        if self._rng.random() < 0.5:
            await admin.wake_up(["weights"])
        await admin.wake_up()
        self.open.set()

    async def _kill(self) -> None:
        if sum(each.startswith("_kill") for each in self.log) < 3:
            await kill(self._services, self._rng.choice(["worker", "engine core", "tokenizer"]))

    async def _adapters(self) -> None:
        for adapter in self._checkpoint.adapters:
            try:
                if self._rng.random() < 0.5:
                    await self._client.llm.adapters.unload(adapter.lora_int_id)
                else:
                    await self._client.llm.adapters.load(adapter)
            except TetradError as error:
                self.log.append(str(error))

    async def _refused(self) -> None:
        body = {"model": "base", "prompt": "abc", "max_tokens": 4, "temperature": 3}
        answer = await self._client.http.post("/v1/completions", json=body)
        assert answer.status_code == 400, answer.text

    async def _abort(self) -> None:
        """End some requests of the crowd: they have the first tokens of their answers."""
        numbers = self._rng.sample(range(self._num_requests), 2)
        self.aborted.update(numbers)
        await self._client.llm.abort([f"crowd-{number}" for number in numbers])

    async def _cancelled(self) -> None:
        calls = [self._drawing.request() for _ in range(4)]
        tasks = [asyncio.ensure_future(call.answer(self._client, f"cancelled-{i}")) for i, call in enumerate(calls)]
        await asyncio.sleep(self._rng.choice([0, 0.01, 0.05]))
        await self._client.llm.abort([f"cancelled-{i}" for i in range(0, 4, 2)])
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass
class Walk:
    """A walk of a seed.

    Attributes:
        checkpoint: the model.
        seed: of requests, settings and disturbances; not of their times.
    """

    checkpoint: Checkpoint
    seed: int
    num_requests: int = 16
    num_disturbances: int = 4

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)
        self.parser = self._rng.choice(["none", "deepseek_r1", "qwen3"])
        self.drawing = Drawing(self._rng, self.checkpoint, reasons=self.parser != "none")
        self.chats: list[list[Asked]] = [[self.drawing.request()] for _ in range(self.num_requests)]
        self.options = draw_options(self._rng, self.checkpoint, self.parser)
        self.log: list[str] = []
        self.aborted: set[int] = set()

    async def run(self) -> list[str]:
        """Return the differences between answers in the crowd and alone."""
        expected = await self.alone()
        found = await self.crowd()
        differences = []
        for number, (chat, others) in enumerate(zip(found, expected, strict=True)):
            for turn, (answer, other) in enumerate(zip(chat, others, strict=False)):
                was_aborted = number in self.aborted and turn == len(chat) - 1
                if text := difference(*(started(answer, other) if was_aborted else (answer, other))):
                    differences.append(f"request {number}, turn {turn}: {text}")
        return differences

    async def alone(self) -> list[list[Any]]:
        """Return the answers, one at a time, of an engine that keeps nothing; some requests are followed by others."""
        worker = {name: value for name, value in self.options.worker.items() if name in CHANGE_VALUES}
        options = Options(
            {"enable_prefix_caching": False, "num_gpu_blocks_override": 3000, "max_loras": 1},
            worker,
            {"reasoning_parser": self.parser},
        )
        answers: list[list[Any]] = []
        async with client_of(self.checkpoint, f"alone-{self.seed}", options) as (client, _):
            for chat in self.chats:
                answers.append([])
                for call in chat:  # grows
                    async with asyncio.timeout(WAIT_S):
                        answers[-1].append(await call.answer(client, f"alone-{len(answers)}"))
                    if len(chat) < 3 and self._rng.random() < 0.4:
                        turn = self.drawing.next_turn(call, answers[-1][-1])
                        chat.extend([] if turn is None else [turn])
        return answers

    async def crowd(self) -> list[list[Any]]:
        """Return the answers of the disturbed engine to all at once."""
        async with client_of(self.checkpoint, f"crowd-{self.seed}", self.options) as (client, services):
            disturbances = Disturbances(self._rng, client, services, self)
            self.log, self.aborted = disturbances.log, disturbances.aborted

            async def ask(call: Asked, request_id: str, kind: RequestOutputKind) -> Any:
                while True:
                    await disturbances.open.wait()
                    answer = await call.answer(client, request_id, kind)
                    # Between its call and the engine core, a request may meet an engine that has fallen asleep.
                    if "The engine sleeps" not in str(answer)[:100]:
                        return answer
                    await asyncio.sleep(0.02)

            async def one(number: int, delay: float, kind: RequestOutputKind) -> list[Any]:
                await asyncio.sleep(delay)
                answers: list[Any] = []
                for call in self.chats[number]:
                    answers.append(await ask(call, f"crowd-{number}", kind))
                    if number in disturbances.aborted:
                        break
                return answers

            kinds = list(RequestOutputKind)
            calls = [one(i, self._rng.random() * 0.1, self._rng.choice(kinds)) for i in range(len(self.chats))]
            async with asyncio.timeout(WAIT_S):
                disturbed = asyncio.create_task(disturbances.run(self.num_disturbances))
                try:
                    found = await asyncio.gather(*calls)
                    await disturbed
                finally:
                    disturbed.cancel()
                await client.llm.wait_idle()
                await self._check_idle(client)
            return found

    async def _check_idle(self, client: Client) -> None:
        for _ in range(100):
            stats = (await client.llm.engine_admin.loads_known())[0].scheduler
            busy = {name: getattr(stats, name) for name in ("num_running", "num_waiting", "kv_cache_usage")}
            if not any(busy.values()):
                self.stats = stats
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"still busy: {busy}")

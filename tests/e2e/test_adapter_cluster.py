"""Adapters of two engine cores behind one frontend: all or none has a loaded one, and requests go where it is."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.e2e.adapted_stack import check_greedy, generate, prompts_of, settings_of
from tests.e2e.tiny_model import save_tiny_model
from tests.lora_files import merged, save_lora
from tests.simulation.cluster import Service
from tetrad import LoRARequest
from tetrad.engine_core_svc.service import serve as serve_engine_core
from tetrad.frontend.llm.async_llm import AsyncLLM
from tetrad.services.direct.carrier import DirectCarrier
from tetrad.services.errors import ModelError, NotFound, TetradError
from tetrad.stack.one_process import OneProcessSettings
from tetrad.tokenizer_svc.service import serve as serve_tokenizer
from tetrad.worker_svc.devices import lora_parts
from tetrad.worker_svc.service import serve as serve_worker

LORAS = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 4, "max_lora_rank": 16}


@dataclass(frozen=True)
class Case:
    """A tiny model with two adapters, and what transformers makes of them."""

    directory: Path
    models: dict[int, torch.nn.Module]

    def lora(self, number: int) -> LoRARequest:
        return LoRARequest(f"adapter-{number}", number, str(self.directory / str(number)))


@pytest.fixture(scope="module")
def case(tmp_path_factory) -> Case:
    directory = tmp_path_factory.mktemp("adapter-cluster")
    save_tiny_model(directory)
    reference = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    for number in (1, 2):
        save_lora(directory / str(number), reference, "q_proj|down_proj", seed=number)
    return Case(directory, {number: merged(reference, directory / str(number)) for number in (1, 2)})


@dataclass(frozen=True)
class Cluster:
    """One frontend over two engine cores, each with a frontend of its own that shows what it has."""

    llm: AsyncLLM
    each: list[AsyncLLM]
    carrier: DirectCarrier

    async def loaded(self) -> list[set[int]]:
        """Return the numbers of the adapters of each engine core."""
        return [{lora.lora_int_id for lora in await llm.engine_admin.list_loras()} for llm in self.each]


@asynccontextmanager
async def cluster(case: Case, name: str) -> AsyncIterator[Cluster]:
    carrier = DirectCarrier()
    both: list[OneProcessSettings] = [settings_of(case.directory, f"{name}-{place}", **LORAS) for place in range(2)]
    async with AsyncExitStack() as exits:
        for settings in both:
            for run, its in (
                (serve_tokenizer, settings.tokenizer),
                (serve_worker, settings.worker),
                (serve_engine_core, settings.engine_core),
            ):
                service = Service(run, its, carrier)
                service.start()
                exits.push_async_callback(service.stop)
        fields = ("engine_targets", "engine_admin_targets")
        targets = {field: tuple(getattr(each.frontend, field)[0] for each in both) for field in fields}
        shared = both[0].frontend.model_copy(update=targets)
        llms = [
            await exits.enter_async_context(await AsyncLLM.connect(settings, carrier))
            for settings in (shared, *(each.frontend for each in both))
        ]
        yield Cluster(llms[0], llms[1:], carrier)


async def test_an_adapter_is_loaded_into_and_unloaded_from_both(case):
    async with cluster(case, "both") as stack:
        admin = stack.llm.engine_admin
        await admin.load_lora(case.lora(1))
        await admin.pin_lora(1)
        assert await stack.loaded() == [{1}, {1}]
        assert [lora.lora_name for lora in await admin.list_loras()] == ["adapter-1"]

        assert await admin.unload_lora(1)

        assert await stack.loaded() == [set(), set()]
        assert not await admin.unload_lora(1)
        with pytest.raises(NotFound, match="no adapter with id 1"):
            await admin.pin_lora(1)


async def test_a_frontend_that_starts_later_knows_an_adapter_that_an_operator_loaded(case):
    async with cluster(case, "later") as stack:
        await stack.llm.engine_admin.load_lora(case.lora(1))
        settings = stack.llm.settings.model_copy(update={"allow_runtime_lora_updating": True})

        async with await AsyncLLM.connect(settings, stack.carrier) as successor:
            found = successor.model_names.lora_of("adapter-1")

    assert found == case.lora(1)


async def test_a_load_that_one_engine_core_refuses_is_taken_back_from_the_other(case, monkeypatch):
    """The second of the two reads finds broken files."""
    read, number_of_reads = lora_parts.read_lora, []

    def read_once(*args, **options):
        number_of_reads.append(args)
        if len(number_of_reads) == 2:
            raise ModelError("the disk of this host is broken")
        return read(*args, **options)

    monkeypatch.setattr(lora_parts, "read_lora", read_once)
    async with cluster(case, "rollback") as stack:
        with pytest.raises(TetradError, match="the disk of this host is broken"):
            await stack.llm.engine_admin.load_lora(case.lora(1))

        assert await stack.loaded() == [set(), set()]
        await stack.llm.engine_admin.load_lora(case.lora(1))
        assert await stack.loaded() == [{1}, {1}]


async def test_a_replacement_that_one_engine_core_refuses_is_taken_back_from_the_other(case, monkeypatch):
    read, refused = lora_parts.read_lora, []

    def read_but_once(path, *args, **options):
        if path == case.directory / "2" and not refused:
            refused.append(path)
            raise ModelError("the disk of this host is broken")
        return read(path, *args, **options)

    monkeypatch.setattr(lora_parts, "read_lora", read_but_once)
    async with cluster(case, "replace") as stack:
        await stack.llm.engine_admin.load_lora(case.lora(1))
        other = replace(case.lora(1), lora_path=case.lora(2).lora_path, load_inplace=True)

        with pytest.raises(TetradError, match="the disk of this host is broken"):
            await stack.llm.engine_admin.load_lora(other)

        paths = [[lora.lora_path for lora in await llm.engine_admin.list_loras()] for llm in stack.each]
        assert paths == [[case.lora(1).lora_path]] * 2


async def test_an_adapter_that_one_engine_core_alone_has_is_listed_and_unloaded(case):
    async with cluster(case, "one") as stack:
        await stack.each[1].engine_admin.load_lora(case.lora(2))

        assert [lora.lora_int_id for lora in await stack.llm.engine_admin.list_loras()] == [2]
        assert await stack.llm.engine_admin.unload_lora(2)
        assert await stack.loaded() == [set(), set()]


async def test_requests_of_an_adapter_go_to_one_engine_core(case):
    """It alone loads the adapter, since nobody has loaded it into both; tokens are the merged checkpoint's."""
    prompts = prompts_of(6, seed=2)
    async with cluster(case, "affinity") as stack:
        for number in (1, 2):
            outputs = await asyncio.gather(
                *(generate(stack.llm, f"{number}-{i}", prompt, case.lora(number)) for i, prompt in enumerate(prompts))
            )
            for prompt, output in zip(prompts, outputs, strict=True):
                check_greedy(case.models[number], prompt, output)

        loaded = await stack.loaded()

    assert sorted(len([its for its in loaded if number in its]) for number in (1, 2)) == [1, 1]


async def test_an_adapter_that_vanished_from_one_engine_core_is_loaded_again_by_its_next_request(case, tmp_path):
    path = tmp_path / "own"
    shutil.copytree(case.directory / "1", path)
    lora, prompt = replace(case.lora(1), lora_path=str(path)), prompts_of(1)[0]
    async with cluster(case, "again") as stack:
        await stack.llm.engine_admin.load_lora(lora)
        for llm in stack.each:
            await llm.engine_admin.unload_lora(1)

        check_greedy(case.models[1], prompt, await generate(stack.llm, "after", prompt, lora))

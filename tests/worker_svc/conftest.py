"""Fixtures of the worker's tests: a tiny model on disk, and a driver of a runner in the place of the engine core."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.worker_svc.service_client import connect
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.plan import CachedRequests, DraftTokens, NewRequest, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.core.result import ModelRunnerOutput, Runner, finished
from tetrad.worker_svc.devices.cpu import CpuDevice, CpuModel
from tetrad.worker_svc.kv_cache.cache import KvCache

GREEDY = SamplingSpec(temperature=0.0)
LAYOUT = KvLayout(num_blocks=400, block_size=16, max_model_len=1024, max_num_seqs=64, max_num_batched_tokens=2048)


@dataclass
class Running:
    """What the driver knows of a request: never its tokens beyond the prompt, as those stay on the worker."""

    prompt: list[int]
    sampling: SamplingSpec
    tables: list[list[int]]
    num_computed: int = 0
    num_tokens: int = 0
    is_new: bool = True
    fields: Mapping[str, object] = field(default_factory=dict)
    output: list[int] = field(default_factory=list)
    logprobs: list[tuple[np.ndarray, np.ndarray, int]] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=list)

    @property
    def blocks(self) -> list[int]:
        """Those of all tables that no window has passed."""
        return [block for table in self.tables for block in table if block]


class Driver:
    """Plans steps by hand. Blocks are dealt in a scattered order, so that no test passes by their being in a row.

    What the windows of the model's KV groups have passed is dealt again at once, unless `keeps_passed`.
    """

    def __init__(self, runner: Runner, layout: KvLayout = LAYOUT, *, keeps_passed: bool = False) -> None:
        self.runner, self.layout, self._keeps_passed = runner, layout, keeps_passed
        target = getattr(runner, "_runner", runner)  # of a runner that drafts
        cache: KvCache | None = getattr(target, "_kv_cache", None)  # a simulated device has none
        # The block of a state is that of the last computed token, as with a window of two.
        self.windows = [2 if group.is_state else group.sliding_window for group in cache.spec.groups] if cache else [None]
        self.requests: dict[int, Running] = {}
        self._free = np.random.default_rng(3).permutation(np.arange(1, layout.num_blocks)).tolist()
        self._step_id = 0
        self._removed: list[int] = []

    def add(
        self,
        handle: int,
        prompt: Iterable[int],
        sampling: SamplingSpec = GREEDY,
        *,
        shared: list[int] | list[list[int]] | None = None,
        computed: int = 0,
        **fields: object,
    ) -> Running:
        prompt = list(prompt)
        """Add a request that begins with `shared` blocks: of the one KV group, or of each."""
        tables = [list(table) for table in shared] if shared and isinstance(shared[0], list) else [list(shared or [])]
        tables = tables if shared else [[] for _ in self.windows]
        self.requests[handle] = Running(prompt, sampling, tables, computed, len(prompt), fields=fields)
        return self.requests[handle]

    def remove(self, handle: int) -> Running:
        """Finish or preempt: forgotten with the next plan."""
        self._removed.append(handle)
        request = self.requests.pop(handle)
        self._free.extend(request.blocks)
        return request

    def plan(self, scheduled: Mapping[int, int], **extra: object) -> SchedulerOutput:
        """Return the plan that runs so many tokens of each handle; the driver's counts move on at once."""
        new, cached = [], []
        for handle, count in scheduled.items():
            request = self.requests[handle]
            self._free_passed(request)
            needed = -(-(request.num_computed + count) // self.layout.block_size) - len(request.tables[0])
            blocks = [[self._free.pop() for _ in range(needed)] for _ in request.tables]
            for table, added in zip(request.tables, blocks, strict=True):
                table.extend(added)
            if request.is_new:
                ids = np.array(request.prompt + request.output, np.int64)
                new.append(
                    NewRequest(
                        handle=handle,
                        request_id=str(handle),
                        token_ids=ids,
                        num_prompt_tokens=len(request.prompt),
                        num_computed_tokens=request.num_computed,
                        num_scheduled_tokens=count,
                        block_ids=np.array(request.tables, np.int64),
                        sampling=request.sampling,
                        eos_token_id=2,
                        **request.fields,
                    )
                )
            else:
                cached.append((handle, count, request.num_computed, blocks))
            request.is_new = False
            request.num_computed += count
            if request.num_computed == request.num_tokens:
                request.num_tokens += 1  # it samples, and will know one more
        removed, self._removed = self._removed, []
        self._step_id += 1
        return SchedulerOutput(self._step_id, new, _columns(cached, len(self.windows)), removed, **extra)

    def _free_passed(self, request: Running) -> None:
        if self._keeps_passed:
            return
        for table, window in zip(request.tables, self.windows, strict=True):
            passed = 0 if window is None else max(request.num_computed - window + 1, 0) // self.layout.block_size
            self._free.extend(block for block in table[:passed] if block)
            table[:passed] = [0] * passed

    def take(self, result: ModelRunnerOutput) -> ModelRunnerOutput:
        """Note a step's tokens."""
        assert not result.failures, result.failures
        for handle, token in zip(result.handles.tolist(), result.token_ids.tolist(), strict=True):
            if handle in self.requests:
                self.requests[handle].output.append(token)
        for group in result.logprobs:
            rows = group.rows
            for index, handle in enumerate(group.handles.tolist()):
                self.requests[handle].logprobs.append((rows.token_ids[index], rows.logprobs[index], int(rows.ranks[index])))
        for item in result.prompt_logprobs:
            self.requests[item.handle].prompt_logprobs.append((item.start, item.rows.token_ids, item.rows.logprobs))
        return result

    def step(self, scheduled: Mapping[int, int], **extra: object) -> ModelRunnerOutput:
        return self.take(finished(self.runner.execute(self.plan(scheduled, **extra))))

    def verify(self, drafts: Mapping[int, list[int]], **extra: object) -> ModelRunnerOutput:
        """Run a decode step in which these requests verify drafts, which may be none."""
        before = {handle: self.requests[handle].num_tokens for handle in drafts}
        scheduled = {handle: self.remaining(handle) + len(draft_ids) for handle, draft_ids in drafts.items()}
        columns = [*drafts], [*map(len, drafts.values())], [*chain.from_iterable(drafts.values())]
        result = self.step(scheduled, drafts=DraftTokens(*(np.array(column, np.int64) for column in columns)), **extra)
        for handle, num_tokens in before.items():
            request = self.requests[handle]
            request.num_tokens = num_tokens + result.handles.tolist().count(handle)
            request.num_computed = request.num_tokens - 1
        return result

    def remaining(self, handle: int) -> int:
        request = self.requests[handle]
        return request.num_tokens - request.num_computed

    def generate(self, num_tokens: int, *, chunk: int = 10_000) -> dict[int, list[int]]:
        """Run every request until each has `num_tokens` outputs, at most `chunk` tokens of a request a step."""
        while any(len(request.output) < num_tokens for request in self.requests.values()):
            self.step(
                {h: min(chunk, self.remaining(h)) for h, request in self.requests.items() if len(request.output) < num_tokens}
            )
        return {handle: request.output for handle, request in self.requests.items()}


def _columns(rows: list[tuple[int, int, int, list[list[int]]]], num_groups: int) -> CachedRequests:
    def column(values: Iterable[int]) -> np.ndarray:
        return np.array(list(values), np.int64)

    return CachedRequests(
        handles=column(row[0] for row in rows),
        num_scheduled_tokens=column(row[1] for row in rows),
        num_computed_tokens=column(row[2] for row in rows),
        num_new_blocks=column(len(row[3][0]) for row in rows),
        new_block_ids=np.stack([column(block for row in rows for block in row[3][group]) for group in range(num_groups)]),
    )


@pytest.fixture(scope="session")
def cpu() -> CpuDevice:
    # One thread: on a machine that runs other tests too, a team of threads waits for its slowest member.
    device = CpuDevice(WorkerSettings(threads=1))
    device.set_up()
    return device


@pytest.fixture(scope="session")
def load(cpu: CpuDevice) -> Callable[[Path], CpuModel]:
    def load_path(path: Path, **options: object) -> CpuModel:
        return cpu.load_model(LoadRequest(str(path), path, **options), lambda *_: None)

    return load_path


@pytest.fixture(scope="session")
def make_driver() -> Callable[..., Driver]:
    def make(model: CpuModel, layout: KvLayout = LAYOUT) -> Driver:
        return Driver(model.make_runner(layout), layout)

    return make


def tiny_config(architecture: str, **changes: object) -> dict[str, object]:
    """Return a config.json of a model that runs in a millisecond."""
    return {
        "architectures": [architecture],
        "model_type": {"L": "llama", "M": "mistral"}.get(architecture[0], architecture[:5].lower()),
        "vocab_size": 320,
        "hidden_size": 96,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "initializer_range": 0.2,
        "hidden_act": "silu",
        **changes,
    }


def save_tiny(directory: Path, config: Mapping[str, object], **options: object) -> torch.nn.Module:
    """Write a random model as transformers does, and return transformers' own."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(1)
    kwargs = {key: value for key, value in config.items() if key not in ("model_type", "architectures")}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **kwargs))
    for name, parameter in model.named_parameters():
        if name.endswith(("bias", "norm.weight")):
            torch.nn.init.normal_(parameter, mean=1.0, std=0.2)
    model.eval().save_pretrained(directory, **options)
    return model


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, torch.nn.Module]:
    directory = tmp_path_factory.mktemp("tiny")
    return directory, save_tiny(directory, tiny_config("LlamaForCausalLM"))


@pytest.fixture(scope="session")
def tiny(tiny_llama: tuple[Path, torch.nn.Module], load: Callable[[Path], CpuModel]) -> CpuModel:
    return load(tiny_llama[0])


@pytest.fixture(scope="session")
def smollm2_float32(smollm2: Path, load: Callable[[Path], CpuModel]) -> CpuModel:
    """Return SmolLM2 with its weights dequantized, which takes seconds, on one thread."""
    return load(smollm2, dtype="float32")


@pytest.fixture(scope="session")
def save_tiny_model() -> Callable[..., torch.nn.Module]:
    def save(
        directory: Path, architecture: str, changes: Mapping[str, object] | None = None, **options: object
    ) -> torch.nn.Module:
        return save_tiny(directory, tiny_config(architecture, **(changes or {})), **options)

    return save


@pytest.fixture(scope="session")
def assert_greedy() -> Callable[[torch.nn.Module, list[int], list[int]], np.ndarray]:
    """Check that `output` is what a transformers model generates greedily after `prompt`; return its logprobs."""

    @torch.inference_mode()
    def check(reference: torch.nn.Module, prompt: list[int], output: list[int]) -> np.ndarray:
        logits = reference(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1 :].float()
        assert logits.argmax(-1).tolist() == output
        return logits.log_softmax(-1)[range(len(output)), output].numpy()

    return check


@pytest.fixture
async def client(tmp_path):
    async with connect(tmp_path) as client:
        yield client

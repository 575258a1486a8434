"""Draft compute: compares the processor time of answers with and without drafts, scheduler and model on one thread.

`python -m benchmarks.draft_compute`. The scheduler, its decisions about drafts and the model runner run in one process and are
called directly. A thread's processor time depends little on other load of the machine; speculation.py measures the rates that
clients see.
"""

import time
from dataclasses import dataclass

from benchmarks.figures import median, ratios, spread
from benchmarks.in_process import plan_of, result_of
from benchmarks.options import Options, read_options
from benchmarks.report import Bar, Section, add_bars, write_section
from benchmarks.speculation import NGRAM, PLAIN, PREDICTION, SUFFIX, Task, tasks
from benchmarks.stack import MODEL
from tetrad.engine_core_svc.core.request import Request
from tetrad.engine_core_svc.core.speculative_config import read_speculative_config
from tetrad.engine_core_svc.kv_cache.manager import KVCacheManager
from tetrad.engine_core_svc.scheduler.drafting import Drafts, NoDrafts
from tetrad.engine_core_svc.scheduler.drafts.proposers import drafts_for
from tetrad.engine_core_svc.scheduler.limits import SchedulerLimits
from tetrad.engine_core_svc.scheduler.scheduler import Scheduler
from tetrad.services.hub.model_files import resolve_model
from tetrad.tokenizer_svc.loading.load import load_tokenizer
from tetrad.worker_svc.config import WorkerSettings
from tetrad.worker_svc.core.device import KvLayout, LoadRequest
from tetrad.worker_svc.core.result import Runner, finished
from tetrad.worker_svc.devices import open_device

_LAYOUT = KvLayout(1024, 16, 4096, 8, 4096)
_NUM_TOKENS = 160
_RANDOM = "random ids, whose greedy answer repeats itself"


@dataclass(frozen=True)
class Answer:
    """An answer: processor milliseconds per token and number of steps, both after the first token, and all token ids."""

    token_ms: float
    num_steps: int
    token_ids: list[int]


def drafts_of(system: str) -> Drafts:
    """Return the drafts of a system, with the options of speculation.py."""
    if system == PLAIN:
        return NoDrafts()
    if system == NGRAM:
        options = {"num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
        return drafts_for(read_speculative_config({"method": "ngram", **options}))
    return drafts_for(None if system == PREDICTION else read_speculative_config({"method": "suffix"}))


def answer(runner: Runner, prompt: list[int], predicted: list[int], drafts: Drafts) -> Answer:
    """Generate the answer of one prompt greedily, with no other request."""
    runner.forget_all()
    scheduler = Scheduler(
        SchedulerLimits(max_num_batched_tokens=_LAYOUT.max_num_batched_tokens),
        KVCacheManager(_LAYOUT.num_blocks, _LAYOUT.block_size),
        drafts=drafts,
    )
    request = Request(1, "1", [*prompt], len(prompt), len(prompt) + _NUM_TOKENS, predicted_ids=predicted)
    scheduler.add_request(request)
    spent_s, num_steps = 0.0, -1
    while scheduler.has_requests:
        begun_s = time.thread_time()
        plan = scheduler.schedule()
        assert plan is not None
        computed_s = time.thread_time()
        result = result_of(finished(runner.execute(plan_of(plan))))
        result.compute_s = time.thread_time() - computed_s
        scheduler.update(result)
        num_steps += 1
        spent_s += time.thread_time() - begun_s if num_steps else 0.0
    return Answer(1000 * spent_s / (request.num_output_tokens - 1), num_steps, request.token_ids[len(prompt) :])


def measure(options: Options) -> dict[str, dict[str, list[Answer]]]:
    """Return task -> system -> answers; RuntimeError if the systems' token ids differ."""
    path = resolve_model(MODEL)
    tokenizer = load_tokenizer(str(path))
    device = open_device(WorkerSettings(device="cpu", threads=1))
    device.set_up()
    runner = device.load_model(LoadRequest(MODEL, path), lambda *_: None).make_runner(_LAYOUT)
    found: dict[str, dict[str, list[Answer]]] = {}
    chosen = [*tasks(), Task(_RANDOM, "", "")][:: 2 if options.quick else 1]
    for number in range(options.rounds):
        for task in chosen:
            text = f"<|im_start|>user\n{task.question}<|im_end|>\n<|im_start|>assistant\n"
            prompt = list(range(1000, 30_000, 97)) if task.name == _RANDOM else tokenizer.encode(text)
            predicted = tokenizer.encode(task.prediction)
            systems = found.setdefault(task.name, {})
            for system in (PLAIN, NGRAM, SUFFIX, PREDICTION):
                known = predicted if system == PREDICTION else []
                systems.setdefault(system, []).append(answer(runner, prompt, known, drafts_of(system)))
            if len({tuple(each[-1].token_ids) for each in systems.values()}) != 1:
                raise RuntimeError(f"The answers to {task.name!r} differ.")
        print(f"round {number + 1}/{options.rounds} is done", flush=True)
    return found


def _gain(systems: dict[str, list[Answer]], name: str) -> float:
    plain, drafted = ([answer.token_ms for answer in systems[each]] for each in (PLAIN, name))
    return median(ratios(plain, drafted))


def _section(found: dict[str, dict[str, list[Answer]]]) -> Section:
    section = Section("Speculative decoding: processor time per token, scheduler and model on one thread")
    section.text(
        f"SmolLM2, Q4_1; greedy answers of {_NUM_TOKENS} tokens at batch 1 about the texts in [data](data), measured after the "
        "first token. Milliseconds per token; then the ratio of plain decoding to decoding with drafts."
    )
    drafted = (NGRAM, SUFFIX, PREDICTION)
    rows = []
    for task, systems in found.items():
        times = [spread([each.token_ms for each in systems[name]], 2) for name in (PLAIN, *drafted)]
        gains = [f"{_gain(systems, name):.2f} ({systems[name][-1].num_steps} steps)" for name in drafted]
        rows.append([task, *times, *gains])
    section.table(["", PLAIN, *drafted, *(f"{PLAIN} / {name}" for name in drafted)], rows)
    bars = [Bar("edit, n-gram", 1.6, _gain(found["edit"], NGRAM)), Bar("edit, suffix", 1.6, _gain(found["edit"], SUFFIX))]
    bars.append(Bar("edit, prediction", 2.0, _gain(found["edit"], PREDICTION)))
    add_bars(section, bars)
    return section


def main() -> None:
    """Measure and write the section of the report."""
    options = read_options("draft_compute", __doc__)
    write_section("draft_compute", _section(measure(options)), options)


if __name__ == "__main__":
    main()

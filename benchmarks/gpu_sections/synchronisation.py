"""Synchronisation: checks that no step waits for the device. torch raises on synchronising calls while a plan is executed.

Each kind of sampling is a separate batch and runs twice: first unchecked, because compiling a kernel may synchronise, then
checked. On the host there is no synchronisation to detect, and the run only checks the script.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import cycle

import numpy as np
import torch

from benchmarks.gpu_sections.bench import Bench
from benchmarks.gpu_sections.findings import Findings, last_line
from benchmarks.gpu_sections.model import load, make_runner, random_source
from benchmarks.gpu_sections.plans import GREEDY, Batch, Executor, random_prompts, run_plans
from tetrad.worker_svc.core.plan import GrammarRows, SamplingSpec, SchedulerOutput
from tetrad.worker_svc.core.result import ModelRunnerOutput, PendingStep

_SAMPLING: Mapping[str, SamplingSpec] = {
    "greedy": GREEDY,
    "temperature": SamplingSpec(temperature=0.8, seed=3),
    "top_k, top_p, min_p": SamplingSpec(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, seed=3),
    "penalties": SamplingSpec(presence_penalty=0.5, frequency_penalty=0.5, repetition_penalty=1.1, seed=3),
    "logprobs": SamplingSpec(temperature=0.0, num_logprobs=5),
    "logprobs of the prompt": SamplingSpec(temperature=0.0, num_prompt_logprobs=2),
    "logit_bias, allowed ids": SamplingSpec(logit_bias={5: 1.0}, allowed_token_ids=(5, 6, 7), seed=3),
    "bad_words": SamplingSpec(bad_words=((5, 6), (7,)), seed=3),
    "min_tokens": SamplingSpec(min_tokens=4, stop_token_ids=(7,), seed=3),
}


@dataclass(frozen=True)
class Watched:
    """An executor whose steps must not wait for the device.

    Args:
        runner: runner that executes the steps.
    """

    runner: Executor

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | PendingStep:
        """Run one step; RuntimeError if it waits for the device."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            return self.runner.execute(plan)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@dataclass(frozen=True)
class Constrained:
    """An executor that adds a grammar mask, which allows every second token, to every request of a decode step.

    Args:
        runner: runner that executes the steps.
        vocab_size: V.
    """

    runner: Executor
    vocab_size: int

    def execute(self, plan: SchedulerOutput) -> ModelRunnerOutput | PendingStep:
        """Run one step with the masks."""
        handles = plan.cached.handles
        bitmask = np.full((len(handles), -(-self.vocab_size // 32)), 0x55555555, np.uint32)
        return self.runner.execute(replace(plan, grammar=GrammarRows(handles, bitmask)) if len(handles) else plan)


def run(bench: Bench) -> Findings:
    """Check chunks of prompts and decode steps, with each kind of sampling, and with all kinds in one batch."""
    findings = Findings("No synchronisation inside a step")
    loaded = load(bench, random_source(bench), torch.bfloat16 if bench.is_gpu else torch.float32)
    size, length, most = bench.pick((8, 600, 1024), (len(_SAMPLING), 2, len(_SAMPLING)))
    mixed = [each for each, _ in zip(cycle(_SAMPLING.values()), range(size), strict=False)]
    prompts = random_prompts(size, length, loaded.model.config.vocab_size)
    ways: dict[str, SamplingSpec | list[SamplingSpec]] = {
        **bench.pick(_SAMPLING, {}),
        "all of these in one batch": mixed,
        "grammar": GREEDY,
    }
    rows = []
    for use_graphs in bench.pick((True, False), (True,)):
        runner = make_runner(bench, loaded, batch=size, length=length + 8, max_num_batched_tokens=most, use_graphs=use_graphs)
        constrained = Constrained(runner, loaded.model.config.vocab_size)
        for name, sampling in ways.items():
            executor: Executor = constrained if name == "grammar" else runner
            problem = ""
            try:
                for each in (executor, Watched(executor)) if bench.is_gpu else (executor,):
                    batch = Batch(prompts, sampling, max_num_batched_tokens=most)
                    run_plans(each, [*batch.prefill_plans(), *batch.decode_plans(bench.pick(4, 1))])
                    runner.forget_all()
            except RuntimeError as error:
                problem = last_line(error)
                runner.forget_all()
            findings.check(not problem, f"{name}, graphs {use_graphs}: {problem}")
            rows.append([name, "yes" if use_graphs else "no", "NO" if problem else "yes"])
    findings.rows(["sampling", "graphs", "no step waited"], rows)
    return findings

"""Custom logits processors in the host's sampler: changed logits, order of application, errors."""

import re

import numpy as np
import pytest
import torch

from tests.worker_svc.sampler.custom_processors import MODULE
from tests.worker_svc.sampler.sampler_bench import V, peaks, spec
from tetrad.services.errors import FailedPrecondition, InternalError, InvalidRequest, Unsupported
from tetrad.worker_svc.core.input_batch import InputBatch
from tetrad.worker_svc.core.plan import NewRequest, SamplingSpec
from tetrad.worker_svc.core.pooling import PoolingSpec
from tetrad.worker_svc.sampler.custom_classes import NamedProcessor, import_classes, make_processors
from tetrad.worker_svc.sampler.sampler import Sampler


def processors(*names):
    classes = import_classes([f"{MODULE}:{name}" for name in names])
    return make_processors(classes, torch.device("cpu"), vocab_size=V, max_model_len=128, max_num_seqs=8)


class Bench:
    """A sampler with custom processors, over requests of the form (sampling parameters, prompt, output)."""

    def __init__(self, *rows, names=("Target", "Hash", "Wrong")):
        self.batch = InputBatch(max_num_seqs=8, max_model_len=128, block_size=16)
        self.sampler = Sampler(self.batch, V, processors(*names))
        self.slots = np.array([self.add(handle, *row) for handle, row in enumerate(rows)])

    def add(self, handle, sampling, prompt=(1,), output=(), **fields):
        ids = np.array([*prompt, *output], np.int64)
        blocks = np.zeros((1, 8), np.int64)
        request = NewRequest(handle, str(handle), ids, len(prompt), 0, len(ids), blocks, sampling, 2, **fields)
        self.sampler.check(request)
        slot = self.batch.add(request)
        self.sampler.add(slot, request)
        return slot

    def sample(self, logits):
        return self.sampler.sample(torch.tensor(np.array(logits)).reshape(len(self.slots), V).clone(), self.slots, None)


def asking(**extra_args):
    return spec(extra_args=extra_args)


def test_a_function_gets_the_output_and_changes_its_row_alone():
    bench = Bench((asking(target=9), [4, 4], [7]), (spec(),), (asking(target=9), [4, 4], []))

    assert bench.sample([peaks(_5=9)] * 3).token_ids.tolist() == [10, 5, 9]
    assert bench.sampler.needs_logits(bench.slots, None)
    assert not bench.sampler.needs_logits(bench.slots[1:2], None)


def test_a_function_with_three_parameters_gets_the_prompt_first():
    prompts = [[1, 2], [1, 2, 3]]
    outputs = [[4], []]
    bench = Bench(*((asking(hash=5.0), prompt, output) for prompt, output in zip(prompts, outputs, strict=True)))
    seen = [1 + 2 + 14 + 4, 1 + 2 + 3 + 21]

    found = bench.sample([np.zeros(V, np.float32)] * 2).token_ids.tolist()

    assert found == [next(token for token in range(V) if (31 * token + each) % 11 == 0) for each in seen]


class Probe:
    """Keeps the logits that it gets, and changes nothing."""

    def __init__(self):
        self.seen = None

    def new_req_logits_processor(self, params):
        return self.look

    def look(self, output_token_ids, logits):
        self.seen = logits.tolist()
        return logits


def test_masks_and_biases_come_before_and_penalties_after():
    probe = Probe()
    before = {"allowed_token_ids": (5, 6, 7, 8), "logit_bias": {6: 2.0}, "bad_words": ((7,),)}
    after = {"frequency_penalty": 2.0, "thinking_token_budget": 1, "thinking_end_ids": (30,)}
    early = {"min_tokens": 5, "stop_token_ids": (8,)}
    bench = Bench(names=())
    bench.sampler = Sampler(bench.batch, V, (NamedProcessor("probe", probe),))
    bench.slots = np.array([bench.add(0, spec(**before, **early, **after), [1], [6])])

    bench.sample([peaks(_5=9, _6=3)])

    assert probe.seen == [{5: 9.0, 6: 5.0}.get(token, -np.inf) for token in range(V)]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"temperature": 1.7, "seed": 3, "top_p": 0.1}, 10),
        ({"temperature": 0.0, "frequency_penalty": 2.0}, 10),
        ({"temperature": 0.0, "thinking_token_budget": 1, "thinking_end_ids": (30,)}, 30),
    ],
)
def test_other_parameters_choose_from_what_a_processor_leaves(fields, expected):
    bench = Bench((SamplingSpec(extra_args={"target": 9}, **fields), [1], [6]))

    assert bench.sample([peaks(_5=9)]).token_ids.tolist() == [expected]


def test_a_processor_that_leaves_only_masked_tokens_fails_its_row():
    bench = Bench((spec(extra_args={"target": 9}, allowed_token_ids=(5, 6)),))

    [(row, error)] = bench.sample([peaks(_5=9)]).failures

    assert (row, type(error)) == (0, InvalidRequest)
    assert error.message.startswith(f"Nothing is left to sample: logits processor {MODULE}:Target excludes")


@pytest.mark.parametrize(
    ("largest", "kind", "text"),
    [
        (-np.inf, InvalidRequest, "Nothing is left to sample: every token is excluded by the request's parameters"),
        (np.nan, InternalError, "The model's largest logit is nan"),
    ],
)
def test_a_processor_is_not_blamed_for_the_logits_that_it_gets(largest, kind, text):
    bench = Bench((asking(hash=True), [1], [6]))

    [(row, error)] = bench.sample(np.full(V, largest, np.float32)).failures

    assert (row, type(error)) == (0, kind)
    assert error.message.startswith(text)


def test_logprobs_are_those_of_the_raw_logits():
    plain, changed = (
        Bench((spec(num_logprobs=2, extra_args=extra_args),)).sample([peaks(_5=9, _9=3)])
        for extra_args in (None, {"target": 9})
    )

    [(_, of_plain)], [(_, of_changed)] = plain.logprobs, changed.logprobs
    assert of_changed.token_ids[0].tolist() == [9, *of_plain.token_ids[0, 1:].tolist()]
    assert of_changed.logprobs[0, 1:].tolist() == of_plain.logprobs[0, 1:].tolist()
    assert of_changed.ranks.tolist() == [2]


@pytest.mark.parametrize(
    ("wrong", "kind", "text"),
    [
        ("shape", InternalError, r"returned \[3\] float32 on cpu in place of logits \[50\] float32 on cpu"),
        ("type", InternalError, r"returned \[50\] float64 on cpu in place of logits"),
        ("list", InternalError, "returned a list in place of logits"),
        ("None", InternalError, "returned a NoneType in place of logits"),
        ("sparse", InternalError, r"returned \[50\] sparse float32 on cpu in place of logits"),
        ("NaN", InternalError, "the largest is nan"),
        ("infinity", InternalError, "the largest is inf"),
        ("nothing left", InvalidRequest, "Nothing is left to sample"),
        ("raises", InternalError, "raised KeyError: 'missing'"),
    ],
)
def test_an_error_fails_its_row_alone_and_names_the_class(wrong, kind, text):
    bench = Bench((spec(),), (asking(wrong=wrong),), (asking(target=9),))

    found = bench.sample([peaks(_5=9)] * 3)

    [(row, error)] = found.failures
    assert (row, type(error), error.message.count(f"{MODULE}:Wrong")) == (1, kind, 1)
    assert re.search(text, error.message)
    assert found.token_ids[[0, 2]].tolist() == [5, 9]


@pytest.mark.parametrize(
    ("extra_args", "kind", "text"),
    [
        ({"target": "x"}, InvalidRequest, "Target refuses the request: target must be an int, got 'x'"),
        ({"wrong": "new request"}, InternalError, "Wrong failed for a new request: RuntimeError: on purpose"),
        ({"wrong": "no parameters"}, InternalError, "the parameters of <built-in function max> cannot be counted"),
        ({"wrong": "parameters"}, InternalError, r"the function has 1 parameters; it must have 2 .* or 3"),
    ],
)
def test_a_request_that_a_processor_cannot_take_is_refused(extra_args, kind, text):
    bench = Bench((asking(target=9),))

    with pytest.raises(kind, match=text):
        bench.add(1, asking(**extra_args))

    assert bench.sample([peaks(_5=9)]).token_ids.tolist() == [9]


def test_without_processors_extra_args_are_refused():
    with pytest.raises(Unsupported, match="does not support extra_args"):
        Bench((asking(target=9),), names=())


def test_a_pooling_request_concerns_no_processor():
    bench = Bench()
    bench.add(0, asking(wrong="new request"), pooling=PoolingSpec("embed"))

    assert len(bench.batch) == 1


def test_a_removed_request_leaves_no_function_in_its_slot():
    bench = Bench((asking(target=9),))
    bench.sampler.remove(bench.batch.remove(0))
    bench.slots = np.array([bench.add(1, spec())])

    assert bench.sample([peaks(_5=9)]).token_ids.tolist() == [5]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["Target"], "Target cannot be used: write it as module:Class"),
        (["no_such_module:Target"], "it cannot be imported .ModuleNotFoundError: No module named 'no_such_module'"),
        ([f"{MODULE}:Missing"], "it cannot be imported .AttributeError"),
        ([f"{MODULE}:NO_CLASS"], "it is a int, no class"),
        ([f"{MODULE}:Half"], "it has no new_req_logits_processor; derive it from tetrad.logits_processors"),
        ([f"{MODULE}:Target", f"{MODULE}:Target"], "Target is given twice"),
    ],
)
def test_a_name_of_no_processor_is_refused_in_one_line(names, text):
    with pytest.raises(FailedPrecondition, match=text) as refused:
        import_classes(names)

    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Last", r"is_argmax_invariant\(\) is True, and no processor is applied after the temperature"),
        ("Unmakeable", "it cannot be made .KeyError: 'no such file'"),
    ],
)
def test_a_class_that_cannot_be_applied_is_refused(name, text):
    with pytest.raises(FailedPrecondition, match=text):
        processors(name)

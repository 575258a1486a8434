"""The share of a prompt in a step while other requests decode. The device's times are computed."""

import pytest

from tetrad.engine_core_svc.scheduler.prefill_throttle import MeasuringThrottle, NoThrottle, StepTimes

DECODES_S, TOKEN_S = 0.040, 0.001
"""Seconds: of a step's decodes, and of a token of a prompt."""


def device(tokens: list[int]) -> float:
    """Return the seconds of a step: reading the weights once for all decodes, and multiplying for each token of a prompt."""
    prompt_tokens = sum(count for count in tokens if count > 1)
    return DECODES_S * (1 in tokens) + TOKEN_S * prompt_tokens


@pytest.fixture
def make_paced(make_bench):
    """Return a maker of benches on that device; 16 requests decode, and the throttle has seen them do it."""

    def make(throttle, takes_s=device, num_decoding=16, **limits):
        bench = make_bench(throttle=throttle, **limits)
        bench.takes_s = takes_s
        for _ in range(num_decoding):
            bench.add(100, max_tokens=5000)
        for _ in range(20):
            bench.step()
        return bench

    return make


def seconds_until_computed(bench, request) -> list[float]:
    """Step until a prompt is computed; return what each step took."""
    seconds = []
    while not request.first_output_sent:
        seconds.append(device(list(bench.step().values())))
    return seconds


def test_a_long_prompt_is_cut_so_that_steps_take_at_most_twice_as_long(make_paced):
    bench = make_paced(MeasuringThrottle(2.0))

    seconds = seconds_until_computed(bench, bench.add(2000))

    assert max(seconds) <= 2.05 * DECODES_S
    assert len(seconds) == pytest.approx(2000 * TOKEN_S / DECODES_S, rel=0.15)


class Recorder(NoThrottle):
    """Records the numbers of decodes and of prompt tokens of each plan."""

    def __init__(self):
        self.planned = []

    def note_planned(self, step_id, num_decodes, num_prompt_tokens):
        self.planned.append((num_decodes, num_prompt_tokens))


def test_a_prompt_that_waits_for_blocks_does_not_count_as_computed(make_bench):
    throttle = Recorder()
    bench = make_bench(throttle=throttle, num_blocks=8, block_size=4)
    bench.add(10, max_tokens=14)
    bench.step()
    bench.add(20, max_tokens=2)

    bench.step()

    assert throttle.planned == [(0, 10), (1, 0)]


def test_a_chunk_that_finds_no_blocks_does_not_count_as_computed(make_bench):
    throttle = Recorder()
    bench = make_bench(throttle=throttle, num_blocks=8, block_size=4, long_prefill_token_threshold=4)
    bench.add(10, max_tokens=14)
    bench.step()
    bench.add(16, max_tokens=2)

    for _ in range(4):
        bench.step()

    assert throttle.planned == [(0, 10), (1, 4), (1, 4), (1, 4), (1, 0)]


def test_a_chunk_of_one_token_that_finds_no_blocks_does_not_count_as_computed(make_bench):
    throttle = Recorder()
    bench = make_bench(throttle=throttle, num_blocks=5, block_size=4, long_prefill_token_threshold=1)
    bench.add(4, max_tokens=12)
    bench.step()
    bench.add(8, max_tokens=2)

    while bench.scheduler.states.num_preemptions == 0:
        bench.step()

    assert throttle.planned[-1] == (1, 0)


def test_without_a_throttle_the_prompt_holds_up_everyone(make_paced):
    bench = make_paced(NoThrottle())

    assert len(seconds_until_computed(bench, bench.add(2000))) == 1


def test_where_nothing_decodes_prompts_fill_the_step(make_bench):
    bench = make_bench(throttle=MeasuringThrottle(2.0))
    bench.takes_s = device
    bench.add(100, max_tokens=10)
    bench.run()
    request = bench.add(3000)

    assert bench.step() == {request.key: 2048}
    assert bench.step() == {request.key: 952}


def test_a_burst_is_let_in_though_a_few_decode(make_paced):
    """Sixty that wait for one that decodes are given sixty times the time of its step."""
    bench = make_paced(MeasuringThrottle(2.0), num_decoding=1)
    burst = [bench.add(20) for _ in range(60)]

    assert len(bench.step()) == 1 + len(burst)


def test_steps_that_nobody_notices_are_not_shortened(make_paced):
    bench = make_paced(MeasuringThrottle(2.0), takes_s=lambda tokens: device(tokens) / 1000)
    request = bench.add(2000)

    bench.step()

    assert request.num_computed_tokens == 2000


def test_what_was_learned_follows_the_device(make_paced):
    """Prompts cost twice as much from now on, and there is always one: after some steps they are cut half as long."""
    bench = make_paced(MeasuringThrottle(2.0))
    bench.takes_s = lambda tokens: DECODES_S * (1 in tokens) + 2 * TOKEN_S * sum(count for count in tokens if count > 1)
    for _ in range(4):
        request = bench.add(1000, max_tokens=1)
        while not request.first_output_sent:
            bench.step()

    late = bench.add(1000)
    bench.step()

    assert late.num_computed_tokens == pytest.approx(DECODES_S / (2 * TOKEN_S), rel=0.2)


def test_a_prompt_goes_on_even_if_a_few_of_its_tokens_take_longer_than_all_decodes(make_paced):
    bench = make_paced(MeasuringThrottle(1.0), takes_s=lambda tokens: 50 * device(tokens))
    request = bench.add(2000)

    bench.step()

    assert request.num_computed_tokens == 8


def test_a_prompt_in_pieces_does_not_starve_those_behind_it_in_order(make_paced):
    """It is more urgent, so it stands before them, and takes none of the tokens they need."""
    bench = make_paced(MeasuringThrottle(2.0), policy="priority", max_num_batched_tokens=64, num_decoding=4)
    long = bench.add(2000, priority=1)
    bench.step()

    planned = bench.step()

    assert bench.scheduler.running[0] is long
    assert sorted(planned.values())[:4] == [1] * 4


def test_short_prompts_beside_decodes_teach_what_long_ones_cost(make_bench):
    bench = make_bench(throttle=MeasuringThrottle(2.0))
    bench.takes_s = device
    for _ in range(16):
        bench.add(20, max_tokens=500)
        bench.step()
    long = bench.add(2000)

    bench.step()

    assert long.num_computed_tokens == pytest.approx(DECODES_S / TOKEN_S, rel=0.2)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_everything_ends_whatever_is_paced(make_bench, depth):
    bench = make_bench(throttle=MeasuringThrottle(1.5), max_num_seqs=8, num_blocks=400, enable_caching=False)
    bench.takes_s = device
    for number in range(40):
        bench.add(1 + 97 * number % 700, max_tokens=1 + number % 13)

    bench.run(depth=depth)


def test_steps_that_were_lost_with_their_worker_teach_nothing():
    throttle = MeasuringThrottle(2.0)
    throttle.note_planned(0, 0, 1000)
    throttle.forget_steps()
    throttle.note_planned(1, 0, 100)
    throttle.note_returned(1, 0.1)
    throttle.note_planned(2, 4, 0)
    throttle.note_returned(2, 0.04)

    assert throttle.prompt_tokens(4, 1) == pytest.approx(40, abs=1)


@pytest.mark.parametrize("compute_s", [0.0, -1.0, float("nan"), float("inf"), 1e308])
def test_a_worker_that_does_not_say_how_long_steps_took_is_not_paced(compute_s):
    throttle = MeasuringThrottle(2.0)
    for step_id, (decodes, tokens) in enumerate([(0, 1000), (4, 0)]):
        throttle.note_planned(step_id, decodes, tokens)
        throttle.note_returned(step_id, compute_s)

    assert throttle.prompt_tokens(4, 1) is None


def taught(throttle):
    """Return the throttle when it knows that decodes take 40 ms and a token of a prompt 1 ms."""
    for step_id, (decodes, tokens, seconds) in enumerate([(0, 1000, 1.0), (4, 0, 0.04)]):
        throttle.note_planned(step_id, decodes, tokens)
        throttle.note_returned(step_id, seconds)
    return throttle


def test_one_paced_step_of_sixteen_has_nearly_no_prompt():
    """So that it stays known what decodes take alone."""
    throttle = taught(MeasuringThrottle(2.0))

    tokens = [throttle.prompt_tokens(4, 1) for _ in range(48)]

    assert [number for number, count in enumerate(tokens, 1) if count == 1] == [16, 32, 48]
    assert set(tokens) == {1, 40}


@pytest.mark.parametrize("known", [[(0, 1000, 1.0)], [(4, 0, 0.04)], []], ids=["prompts", "decodes", "nothing"])
def test_nothing_is_paced_until_both_costs_are_known(known):
    throttle = MeasuringThrottle(2.0)
    for step_id, (decodes, tokens, seconds) in enumerate(known):
        throttle.note_planned(step_id, decodes, tokens)
        throttle.note_returned(step_id, seconds)

    assert throttle.prompt_tokens(4, 1) is None


@pytest.mark.parametrize(("num_decoding", "num_waiting"), [(0, 1), (4, 0)])
def test_nothing_is_paced_where_nobody_decodes_or_nobody_waits(num_decoding, num_waiting):
    assert taught(MeasuringThrottle(2.0)).prompt_tokens(num_decoding, num_waiting) is None


@pytest.mark.parametrize(
    ("num_decoding", "num_waiting", "tokens"), [(8, 2, 40), (8, 1, 40), (4, 2, 80), (1, 1, 160), (1, 10, 1600)]
)
def test_one_that_waits_outweighs_four_that_decode(num_decoding, num_waiting, tokens):
    assert taught(MeasuringThrottle(2.0)).prompt_tokens(num_decoding, num_waiting) == pytest.approx(tokens, abs=1)


def test_a_step_of_an_hour_is_not_believed_and_a_short_one_is():
    throttle = MeasuringThrottle(2.0)
    for step_id, seconds in enumerate((3600.0, 1.0)):
        throttle.note_planned(step_id, 0, 1000)
        throttle.note_returned(step_id, seconds)
    throttle.note_planned(2, 4, 0)
    throttle.note_returned(2, 0.04)

    assert throttle.prompt_tokens(4, 1) == pytest.approx(40, abs=1)


def test_a_result_says_nothing_of_steps_that_were_planned_before_or_after_its_own():
    throttle = MeasuringThrottle(2.0)
    for step_id in range(3):
        throttle.note_planned(step_id, 0, 1000)
    throttle.note_returned(1, 1.0)
    throttle.note_planned(3, 4, 0)
    throttle.note_returned(3, 0.04)

    assert throttle.prompt_tokens(4, 1) == pytest.approx(40, abs=1)


def test_a_step_that_does_not_say_how_long_it_took_changes_nothing_of_what_is_known():
    throttle = taught(MeasuringThrottle(2.0))
    throttle.note_planned(2, 4, 0)
    throttle.note_returned(2, 0.0)

    assert throttle.prompt_tokens(4, 1) == 40


def times(*steps):
    """Return the estimates from steps of (decodes, prompt tokens, seconds). A decode step takes 8 s, a prompt token 2 s."""
    learned = StepTimes()
    for step in steps:
        learned.observe(*step)
    return learned.decode_s, learned.token_s


def test_nothing_is_known_at_first():
    assert times() == (0.0, 0.0)


@pytest.mark.parametrize("num_prompt_tokens", [0, 1])
def test_decodes_alone_or_beside_one_token_tell_what_decodes_take(num_prompt_tokens):
    assert times((4, num_prompt_tokens, 8.0)) == (8.0, 0.0)


def test_the_newest_step_moves_what_is_known_by_a_part():
    assert times((4, 0, 10.0), (4, 0, 5.0)) == (pytest.approx(8.5), 0.0)
    assert times((0, 100, 1000.0), (0, 100, 500.0)) == (0.0, pytest.approx(8.5))
    assert times((4, 0, 8.0), (4, 10, 108.0), (4, 10, 58.0)) == (8.0, pytest.approx(8.5))


def test_a_step_that_something_disturbed_counts_as_a_quarter_longer():
    assert times((4, 0, 8.0), (4, 0, 800.0)) == (pytest.approx(8.0 + 0.3 * 2.0), 0.0)


def test_prompts_beside_decodes_cost_what_the_step_takes_longer():
    assert times((4, 0, 8.0), (4, 2, 12.0)) == (8.0, 2.0)
    assert times((4, 0, 8.0), (4, 10, 28.0)) == (8.0, 2.0)


def test_prompts_cost_something_even_in_a_step_that_took_no_longer():
    assert times((4, 0, 8.0), (4, 10, 8.0)) == (8.0, pytest.approx(0.08))


def test_the_first_step_with_both_tells_decodes_by_what_is_known_of_prompts():
    assert times((0, 100, 200.0), (4, 10, 28.0)) == (8.0, 2.0)


def test_the_first_step_of_all_with_both_is_decodes_for_the_most_part():
    decode_s, token_s = times((4, 10, 8.0))

    assert decode_s == 8.0
    assert token_s == pytest.approx(0.08)


def test_where_prompts_explain_more_than_the_step_took_decodes_still_take_a_tenth():
    assert times((0, 100, 200.0), (4, 10, 10.0))[0] == pytest.approx(1.0)


def test_prompts_alone_tell_what_they_cost_unless_they_are_short():
    assert times((0, 64, 128.0)) == (0.0, 2.0)
    assert times((0, 10, 40.0)) == (0.0, 4.0), "better than nothing"
    assert times((0, 64, 128.0), (0, 63, 63.0)) == (0.0, 2.0)
    assert times((0, 64, 128.0), (0, 64, 64.0)) == (0.0, pytest.approx(1.7))


def test_prompts_alone_teach_nothing_once_they_were_seen_beside_decodes():
    assert times((4, 0, 8.0), (4, 10, 28.0), (0, 100, 100.0)) == (8.0, 2.0)


def test_a_step_without_tokens_says_nothing():
    times = StepTimes()
    times.observe(0, 0, 1.0)
    assert (times.decode_s, times.token_s) == (0.0, 0.0)

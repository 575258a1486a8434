"""Cutting: at the quietest window in the last second of each 30 s, as vLLM does."""

import itertools
import math

import numpy as np
import pytest

from tetrad.tokenizer_svc.speech.cutting import cut

RATE = 16_000


def noise(seconds, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, int(seconds * RATE)).astype(np.float32)


def vllms_cut(samples, size, overlap, window):
    """The loops of vLLM's split_audio and find_split_point."""
    bounds, i = [0], 0
    while i + size < len(samples):
        start, end = i + size - overlap, min(i + size, len(samples))
        segment, least, quietest = samples[start:end], math.inf, 0
        for place in range(0, len(segment) - window, window):
            energy = (segment[place : place + window] ** 2).mean() ** 0.5
            if energy < least:
                quietest, least = place + start, energy
        i = quietest
        bounds.append(i)
    return [*bounds, len(samples)]


@pytest.mark.parametrize("seconds", [0.01, 29.9, 30.0])
def test_a_short_recording_is_one_piece(seconds):
    samples = noise(seconds)

    assert cut(samples, RATE, 30.0) == [0, len(samples)]


def test_no_samples_are_no_piece():
    assert cut(noise(0), RATE, 30.0) == []


def test_a_long_recording_is_cut_where_it_is_quiet():
    samples = noise(40)
    samples[29 * RATE + 4800 : 29 * RATE + 6400] = 0

    assert cut(samples, RATE, 30.0) == [0, 29 * RATE + 4800, 40 * RATE]


@pytest.mark.parametrize("seed", range(3))
def test_the_pieces_are_vllms(seed):
    samples = noise(100 + seed, seed)

    assert cut(samples, RATE, 30.0) == vllms_cut(samples, 30 * RATE, RATE, 1600)


@pytest.mark.parametrize("max_seconds", [0.001, 0.02, 1.0, 2.0])
def test_short_pieces_cover_the_recording(max_seconds):
    bounds = cut(noise(3), RATE, max_seconds)

    assert (bounds[0], bounds[-1]) == (0, 3 * RATE)
    assert all(0 < end - start <= max_seconds * RATE for start, end in itertools.pairwise(bounds))

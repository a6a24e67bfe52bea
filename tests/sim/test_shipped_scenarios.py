"""The scenarios that ship: what their `about` says is to be seen in them, over several seeds.

Figures that chance has a part in are asserted as means over `SEEDS` seeds, within a margin that is a multiple of their
spread. The figures of aws-occ, brooker-buckets, deep-stack and metastable have files of their own.
"""

from functools import cache
from math import inf

import pytest

from abate.sim import load_scenario, run_study
from abate.sim.scenario import shipped_names
from abate.sim.study import Result

NAMES = (
    "aws-occ",
    "brooker-buckets",
    "cron",
    "deep-stack",
    "herd",
    "metastable",
    "rate-limit",
    "shelter",
    "sneeze",
)
HERE = ("cron", "deep-stack", "herd", "rate-limit", "shelter", "sneeze")
"""Those that are run here as they ship, but for the number of seeds."""
SEEDS = 3


@cache
def results(name: str) -> dict[str, Result]:
    """One result per variant."""
    return {result.case.variant: result for result in run_study(load_scenario(name), seeds=SEEDS, jobs=1).results}


def mean(name: str, variant: str, measure: str) -> float:
    return results(name)[variant].measures[measure].mean


def each(name: str, variant: str, measure: str) -> list[float]:
    return [sample.measures[measure] for sample in results(name)[variant].samples]


# -- all of them


def test_these_ship():
    """The nine that are promised, at least."""
    assert set(NAMES) <= set(shipped_names())


@pytest.mark.parametrize("name", NAMES)
def test_each_says_what_to_see_in_it(name):
    """A paragraph, whose first sentence can stand as its title."""
    about = load_scenario(name).about
    title = " ".join(about.split()).partition(". ")[0]
    assert 20 < len(title) < 120
    assert len(about) > 300


@pytest.mark.parametrize("name", NAMES)
def test_each_compares_at_least_two_variants(name):
    """One run alone shows nothing."""
    assert len({case.variant for case in load_scenario(name).cases()}) >= 2


@pytest.mark.parametrize("name", [name for name in NAMES if name != "brooker-buckets"])
def test_each_can_be_made_smaller(name):
    """Five clients make a world as well, whatever the variant."""
    kind = "controllers" if name == "sneeze" else "clients"
    assert all(case.world.clients.count == 5 for case in load_scenario(name).changed(f"{kind}.count=5").cases())


@pytest.mark.parametrize("name", HERE)
def test_what_is_asserted_in_it_holds(name):
    """A build that runs it succeeds."""
    assert [line for result in results(name).values() for line in result.broken()] == []


# -- herd: a thousand clients, one 503


def test_without_jitter_the_herd_comes_back_as_one():
    """The second spike is as high as the first."""
    assert each("herd", "none", "peak_after") == [1000] * SEEDS


def test_jitter_spreads_the_herd_over_its_delay():
    """A thousand over half a second are 200 per 100 ms, over a second 100; the highest of them is a little more."""
    assert 200 <= mean("herd", "equal", "peak_after") < 240
    assert 100 <= mean("herd", "full", "peak_after") < 140


@pytest.mark.parametrize(("variant", "attempts"), [("none", 2), ("equal", 2), ("full", 2.05)])
def test_the_herd_is_served_at_its_second_attempt(variant, attempts):
    """With full jitter one in twenty comes back before the 503 is over, and needs a third."""
    assert mean("herd", variant, "success") > 0.999
    assert mean("herd", variant, "amplification") == pytest.approx(attempts, abs=0.02)


def test_the_defaults_admit_what_the_reserve_pays_for():
    """Ten per second over a window of ten: a hundred retries, and not one more."""
    assert each("herd", "defaults", "attempts") == [1100] * SEEDS
    assert mean("herd", "defaults", "success") == pytest.approx(0.095, abs=0.005)


# -- sneeze: 500 controllers, 503 for ten seconds


def test_naive_controllers_come_back_together():
    """Most of a thousand keys within the same 100 ms, and more than the queue holds."""
    assert 700 < mean("sneeze", "naive", "peak_after") < 780
    assert mean("sneeze", "naive", "blocking.api") > 0.04
    # 0.1 s, doubled up to 5 s: seven attempts until ten seconds are over, and the changes of those seconds beside
    assert mean("sneeze", "naive", "amplification_during") == pytest.approx(7.06, abs=0.1)


def test_jitter_alone_takes_the_peak_away():
    """Some 20 per 100 ms, and nothing is refused any more."""
    assert mean("sneeze", "jitter", "peak_after") < 35
    assert mean("sneeze", "jitter", "blocking.api") == 0


def test_the_defaults_leave_the_api_alone_while_it_is_down():
    """One attempt per key and what the reserve admits: 100 at once, and 10 per second, for a thousand keys."""
    assert mean("sneeze", "defaults", "amplification_during") == pytest.approx(1.22, abs=0.05)
    assert mean("sneeze", "defaults", "peak_after") < 15
    assert mean("sneeze", "defaults", "attempts") < 0.45 * mean("sneeze", "naive", "attempts")


@pytest.mark.parametrize("variant", ["naive", "jitter", "defaults"])
def test_controllers_lose_nothing(variant):
    """Every key is in step in the end; patience is the price, of a minute and a half at most."""
    assert mean("sneeze", variant, "success") == 1
    assert mean("sneeze", variant, "p99") < 100


# -- rate-limit: 429 and Retry-After


def test_the_hinted_come_back_as_a_second_herd():
    """Retries exactly at the hint make a peak of six times the spike; spread ones about one as high as it."""
    spike = 8 * 600 * 0.1 / 10  # per 100 ms
    assert 5 * spike < mean("rate-limit", "exactly", "peak_after") < 8 * spike
    assert mean("rate-limit", "spread", "peak_after") < 1.5 * spike


def test_a_window_refuses_as_many_either_way():
    """What does not fit into a window is refused, whenever in it that comes."""
    exactly, spread = (mean("rate-limit", variant, "amplification") for variant in ("exactly", "spread"))
    assert exactly == pytest.approx(spread, rel=0.02)
    assert exactly == pytest.approx(1.5, abs=0.1)


def test_spreading_takes_the_slowest_a_little_longer():
    """About ten seconds at p99, and all calls are served."""
    assert 3 < mean("rate-limit", "spread", "p99") - mean("rate-limit", "exactly", "p99") < 20
    assert mean("rate-limit", "spread", "success") > 0.99


# -- shelter: the same outage three times


def test_unbounded_retries_keep_the_server_down():
    """The outage is over after five seconds, and the server never comes back in this minute."""
    assert each("shelter", "retried", "recovery") == [inf] * SEEDS
    assert mean("shelter", "retried", "amplification_after") > 4
    assert mean("shelter", "retried", "success") < 0.5


def test_a_budget_saves_the_server_and_loses_the_calls():
    """Of some thousand calls in the outage, nearly all fail: 8 % of the minute's."""
    assert max(each("shelter", "denied", "recovery")) < 1
    assert mean("shelter", "denied", "success") == pytest.approx(0.917, abs=0.01)
    assert mean("shelter", "denied", "denials") == pytest.approx(1000, rel=0.1)


def test_a_shelter_saves_both():
    """One attempt for each thirty calls of the outage, no call is lost, and the slowest wait some eight seconds."""
    assert max(each("shelter", "sheltered", "recovery")) < 1
    assert each("shelter", "sheltered", "success") == [1] * SEEDS
    assert mean("shelter", "sheltered", "amplification_during") < 0.06
    assert 5 < mean("shelter", "sheltered", "p99") < 12


# -- cron: periodic work


def test_without_an_offset_all_jobs_run_at_once():
    """All 6,000 in one slot of the 600 of a minute, of which the last minute is counted only up to its jobs."""
    assert each("cron", "none", "peak_100ms") == [6000] * SEEDS
    # five rounds at 0, 60, … 240 s: 30,000 calls in 2,401 slots
    assert mean("cron", "none", "peak_to_mean_100ms") == pytest.approx(6000 / (30_000 / 2401))
    assert mean("cron", "none", "success") < 0.05


@pytest.mark.parametrize("variant", ["random", "consistent"])
def test_an_offset_leaves_the_peaks_of_chance(variant):
    """Ten per slot on average: the highest of 2,900 slots is some two times that, as of any ten by chance."""
    assert 1.8 < mean("cron", variant, "peak_to_mean_100ms") < 2.8
    assert mean("cron", variant, "peak_to_mean_1s") < 1.5
    assert mean("cron", variant, "success") == 1


def test_a_consistent_offset_is_the_same_in_every_run():
    """It is the client's own, and no chance has a part in it; nor is it the same every time."""
    assert len(set(each("cron", "consistent", "peak_100ms"))) == 1
    series = results("cron")["consistent"].samples[0].series["attempts"]
    assert list(series[0:600]) == list(series[600:1200])
    assert list(results("cron")["random"].samples[0].series["attempts"][0:600]) != list(series[0:600])

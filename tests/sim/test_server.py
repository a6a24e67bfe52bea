"""A service that runs: the order of requests, failures and limits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abate.sim import Clients, Duration, Limit, Row, Service, Trigger, World
from abate.sim.agenda import Agenda, RandomStreams
from abate.sim.server import Request, RowServer, Server
from abate.sim.simulation import Simulation

HORIZON = 1000.0


class Desk:
    """One service on its own, and what it answered: by request, when, and with what status (200 if it went well)."""

    def __init__(self, service, *triggers, seed=1):
        world = World(Clients(count=1), [service], triggers=triggers, horizon=HORIZON)
        self.agenda = Agenda()
        self.server = Server(service, world, self.agenda, RandomStreams(seed))
        self.answers = {}
        self.hints = {}

    def send(self, name, at=0.0, deadline=None):
        """Have a request sent at an instant."""
        request = Request(self.answered, name, deadline)
        self.agenda.at(at, self.server.submit, request)
        return request

    def leave(self, request, at):
        """From then on its caller does not wait any more."""
        self.agenda.at(at, lambda request: setattr(request, "over", True), request)

    def answered(self, request, failure):
        assert request.owner not in self.answers, "answered twice"
        self.answers[request.owner] = (self.agenda.now(), 200 if failure is None else failure.status_code)
        self.hints[request.owner] = None if failure is None else failure.headers.get("Retry-After")

    def run(self, until=HORIZON):
        self.agenda.run(until)
        return self.answers

    def load(self):
        return self.server.load()


# -- workers and queues


@pytest.mark.parametrize(
    ("order", "instants"),
    [("fifo", {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}), ("lifo", {"a": 1.0, "d": 2.0, "c": 3.0, "b": 4.0})],
)
def test_who_waits_is_served_in_the_order_of_the_queue(order, instants):
    """The oldest first, or the newest."""
    desk = Desk(Service("api", service_time=1.0, order=order))
    for name in "abcd":
        desk.send(name)
    assert desk.run() == {name: (instant, 200) for name, instant in instants.items()}


def test_workers_serve_one_request_each():
    """Two at a time; who finds a free one does not wait."""
    desk = Desk(Service("api", workers=2, service_time=1.0))
    for name, at in [("a", 0.0), ("b", 0.5), ("c", 0.5), ("d", 5.0)]:
        desk.send(name, at)
    assert desk.run() == {"a": (1.0, 200), "b": (1.5, 200), "c": (2.0, 200), "d": (6.0, 200)}
    assert desk.load().busy == 4.0


@pytest.mark.parametrize("order", ["fifo", "lifo"])
@pytest.mark.parametrize("limit", [0, 2])
def test_one_more_than_the_queue_holds_is_refused_at_once(order, limit):
    """The one that comes last, whatever the order."""
    desk = Desk(Service("api", service_time=1.0, queue_limit=limit, order=order))
    for number in range(limit + 2):
        desk.send(number)
    answers = desk.run()
    assert answers[limit + 1] == (0.0, 503)
    assert [status for _, status in answers.values()].count(200) == limit + 1
    assert (desk.load().full, desk.load().served) == (1, limit + 1)


def test_a_request_and_its_answer_travel():
    """Both ways, and the worker is not held meanwhile."""
    desk = Desk(Service("api", service_time=1.0, network=0.25))
    desk.send("a")
    desk.send("b")
    assert desk.run() == {"a": (1.5, 200), "b": (2.5, 200)}


# -- requests whose caller has given up


def test_a_request_whose_caller_has_left_is_still_served():
    """Its time is counted as wasted."""
    desk = Desk(Service("api", service_time=1.0))
    desk.send("a")
    desk.leave(desk.send("b"), at=0.5)
    desk.send("c")
    assert desk.run()["c"] == (3.0, 200)
    assert (desk.load().served, desk.load().wasted, desk.load().expired) == (3, 1.0, 0)


@pytest.mark.parametrize("how", ["left", "deadline"])
def test_a_service_may_drop_what_has_expired(how):
    """When its turn comes; the next one gains its time."""
    desk = Desk(Service("api", service_time=1.0, drop_expired=True))
    desk.send("a")
    if how == "left":
        desk.leave(desk.send("b"), at=0.5)
    else:
        desk.send("b", deadline=1.0)
    desk.send("c")
    assert desk.run() == {"a": (1.0, 200), "c": (2.0, 200)}
    assert (desk.load().expired, desk.load().served, desk.load().wasted) == (1, 2, 0.0)


def test_what_is_being_served_is_never_broken_off():
    """Not even by a service that drops what has expired."""
    desk = Desk(Service("api", service_time=1.0, drop_expired=True))
    desk.leave(desk.send("a", deadline=0.5), at=0.5)
    desk.send("b")
    assert desk.run()["b"] == (2.0, 200)
    assert desk.load().wasted == 1.0


# -- what goes wrong


def test_a_stall_holds_up_what_is_served_and_what_waits():
    """What is half done when it begins is done half a second after it ends."""
    desk = Desk(Service("api", service_time=1.0), Trigger("stall", at=10.0, for_=5.0))
    for name, at in [("before", 9.0), ("half", 9.5), ("within", 12.0)]:
        desk.send(name, at)
    assert desk.run() == {"before": (10.0, 200), "half": (16.0, 200), "within": (17.0, 200)}


def test_serving_takes_longer_while_it_is_slow():
    """By the factor, for the part that falls into it."""
    desk = Desk(Service("api", workers=9, service_time=1.0), Trigger("slow", at=10.0, for_=5.0, factor=4.0))
    for name, at in [("half", 9.5), ("within", 10.0), ("last", 14.0)]:
        desk.send(name, at)
    assert desk.run() == {"half": (12.0, 200), "within": (14.0, 200), "last": (15.75, 200)}


@pytest.mark.parametrize(
    ("workers", "factor", "serve"), [(4, 0.5, 2), (4, 0.0, 0), (10, 0.3, 3), (3, 0.5, 1), (1, 0.5, 1), (4, 1.0, 4)]
)
def test_only_a_share_of_the_workers_serve_while_capacity_is_short(workers, factor, serve):
    """Rounded down, but one serves unless the share is 0; all do when it is over."""
    desk = Desk(Service("api", workers=workers, service_time=1.0), Trigger("capacity", 10.0, 3.5, factor=factor))
    for number in range(100):
        desk.send(number, 10.0)
    ends = [instant for instant, _ in desk.run().values()]
    assert [sum(begun < end <= begun + 1.0 for end in ends) for begun in (10.0, 11.0, 12.0)] == [serve] * 3
    # those who are at it when it is over go on until 14 s
    assert sum(14.0 < end <= 15.0 for end in ends) == workers


def test_workers_that_are_busy_when_capacity_shrinks_finish_what_they_have():
    """And take nothing new until there is room."""
    desk = Desk(Service("api", workers=2, service_time=2.0), Trigger("capacity", 1.0, 10.0, factor=0.5))
    for name in "abcd":
        desk.send(name)
    assert desk.run() == {"a": (2.0, 200), "b": (2.0, 200), "c": (4.0, 200), "d": (6.0, 200)}


@pytest.mark.parametrize("others", [0, 1])
def test_after_trouble_a_service_is_cold_for_a_while(others):
    """Half of its workers serve; two triggers that end at once make it no colder."""
    triggers = [Trigger("error", 5.0, 5.0), *[Trigger("slow", 5.0, 5.0)] * others]
    desk = Desk(Service("api", workers=4, service_time=1.0, cold_start=3.0), *triggers)
    for number in range(30):
        desk.send(number, 10.0)
    ends = [instant for instant, _ in desk.run().values()]
    assert [ends.count(float(second)) for second in range(11, 16)] == [2, 2, 2, 4, 4]


def test_a_second_trigger_prolongs_the_cold():
    """It is cold until it has been warmed up after the last one."""
    triggers = [Trigger("error", 5.0, 5.0), Trigger("error", 5.0, 6.0, share=0.001)]
    desk = Desk(Service("api", workers=4, service_time=1.0, cold_start=3.0), *triggers)
    for number in range(30):
        desk.send(number, 11.0)
    ends = [instant for instant, _ in desk.run().values()]
    assert [ends.count(float(second)) for second in range(12, 17)] == [2, 2, 2, 4, 4]


def test_a_spike_is_no_trouble_of_the_service():
    """More calls arrive, which is the clients' doing: nothing is cold after it."""
    desk = Desk(Service("api", workers=4, service_time=1.0, cold_start=3.0), Trigger("spike", 5.0, 5.0))
    for number in range(4):
        desk.send(number, 10.0)
    assert {instant for instant, _ in desk.run().values()} == {11.0}


def test_an_error_answers_at_once_from_its_first_instant_to_its_last():
    """The last one is not in it; the hint is told; no worker is held."""
    trigger = Trigger("error", at=0.1, for_=0.2, status=500, retry_after=7)
    desk = Desk(Service("api", service_time=0.5), trigger)
    for name, at in [("before", 0.0), ("first", 0.1), ("last", 0.2), ("after", 0.1 + 0.2)]:
        desk.send(name, at)
    assert desk.run() == {"before": (0.5, 200), "first": (0.1, 500), "last": (0.2, 500), "after": (1.0, 200)}
    assert (desk.hints["first"], desk.hints["before"], desk.load().errors) == ("7", None, 2)


@pytest.mark.parametrize(
    ("service", "triggers"),
    [
        (Service("api", workers=10_000, error_rate=0.25, status=500), ()),
        (Service("api", workers=10_000), (Trigger("error", 0.0, 9.0, share=0.25, status=500),)),
    ],
    ids=["by chance", "by a trigger"],
)
def test_a_share_of_the_requests_fail(service, triggers):
    """By chance: within five standard deviations."""
    desk = Desk(service, *triggers)
    for number in range(4000):
        desk.send(number, 1.0)
    failed = sum(status == 500 for _, status in desk.run().values())
    assert abs(failed - 1000) < 5 * 27.4
    assert desk.load().errors == failed


def test_another_services_trouble_is_its_own():
    """A trigger names where."""
    world = World(Clients(1), [Service("a"), Service("b")], triggers=Trigger("error", 0.0, 9.0, service="b"))
    stage = Simulation(world, 1, False)
    answers = {}
    for name, server in stage.servers.items():
        server.submit(Request(lambda request, failure: answers.update({request.owner: failure}), name, None))
    stage.agenda.run(1.0)
    assert answers["a"] is None
    assert answers["b"].status_code == 503


# -- rate limits


def limited(limit, instants):
    """The statuses and hints of requests at these instants."""
    desk = Desk(Service("api", workers=1000, limit=limit))
    for number, at in enumerate(instants):
        desk.send(number, at)
    answers = desk.run()
    return [(answers[number][1], desk.hints[number]) for number in range(len(instants))]


def test_a_bucket_holds_some_seconds_worth_and_fills_up_again():
    """A request that comes too soon is answered with a Retry-After of a second."""
    found = limited(Limit(2.0, per=2.0), [0.0] * 5 + [0.5, 0.5, 100.0, 100.0, 100.0, 100.0, 100.0])
    fine, beyond = (200, None), (429, "1")
    assert found == [*[fine] * 4, beyond, fine, beyond, *[fine] * 4, beyond]


def test_a_window_counts_anew_from_its_beginning():
    """A request beyond the rate is told when the next window begins, rounded up to whole seconds."""
    found = limited(Limit(0.2, per=10.0, kind="window"), [0.0, 0.0, 0.0, 6.5, 9.5, 10.0, 10.5, 10.5])
    fine = (200, None)
    assert found == [fine, fine, (429, "10"), (429, "4"), (429, "1"), fine, fine, (429, "10")]


@pytest.mark.parametrize("kind", ["bucket", "window"])
def test_a_limit_may_tell_its_own_hint(kind):
    """Whatever would be right."""
    assert limited(Limit(1.0, kind=kind, retry_after=30), [0.0, 0.0]) == [(200, None), (429, "30")]


def test_what_is_limited_is_counted_and_takes_no_worker():
    """Nor a place in the queue."""
    desk = Desk(Service("api", service_time=1.0, queue_limit=0, limit=Limit(1.0)))
    for name in "ab":
        desk.send(name)
    assert desk.run() == {"a": (1.0, 200), "b": (0.0, 429)}
    assert (desk.load().limited, desk.load().full, desk.load().served) == (1, 0, 1)


@given(
    instants=st.lists(st.floats(0.0, 20.0), min_size=1, max_size=60),
    rate=st.sampled_from([0.5, 1.0, 1.1, 2.5]),
    per=st.sampled_from([2.0, 5.0]),
)
def test_no_window_lets_more_pass_than_its_rate(instants, rate, per):
    """At whatever instants they come; and a request that is sent again at its hint finds a new window."""
    instants = sorted(instants)
    found = limited(Limit(rate, per, kind="window"), instants)
    passed = [at for at, (status, _) in zip(instants, found, strict=True) if status == 200]
    for number in range(11):
        assert sum(number * per <= at < (number + 1) * per for at in passed) <= rate * per
    for at, (_, hint) in zip(instants, found, strict=True):
        assert hint is None or (at + float(hint)) // per > at // per


# -- everything comes to an end


@given(
    instants=st.lists(st.floats(0.0, 30.0), max_size=40),
    service=st.builds(
        Service,
        st.just("api"),
        workers=st.integers(1, 3),
        service_time=st.sampled_from([0.0, 0.5, Duration(0.5, "exponential")]),
        queue_limit=st.sampled_from([None, 0, 3]),
        order=st.sampled_from(["fifo", "lifo"]),
        drop_expired=st.booleans(),
        error_rate=st.sampled_from([0.0, 0.3]),
        network=st.sampled_from([0.0, 0.1]),
        cold_start=st.sampled_from([0.0, 2.0]),
        limit=st.sampled_from([None, Limit(1.0), Limit(1.0, kind="window")]),
    ),
    triggers=st.lists(
        st.builds(
            Trigger,
            st.sampled_from(["error", "stall", "slow", "capacity", "spike"]),
            st.floats(0.0, 30.0),
            st.floats(0.1, 10.0),
        ),
        max_size=3,
    ),
    left=st.sets(st.integers(0, 39)),
)
def test_every_request_is_answered_once_or_dropped(instants, service, triggers, left):
    """Whatever goes wrong: nothing is lost, and the counts add up."""
    desk = Desk(service, *triggers)
    for number, at in enumerate(instants):
        request = desk.send(number, at)
        if number in left:
            desk.leave(request, at + 0.4)
    answers, load = desk.run(), desk.load()
    assert load.requests == len(instants)
    assert len(answers) == load.requests - load.expired
    assert load.requests == load.served + load.full + load.errors + load.limited + load.expired
    assert sum(status == 200 for _, status in answers.values()) == load.served
    assert 0.0 <= load.wasted <= load.busy + 1e-9


# -- rows


def test_of_several_that_read_the_same_version_one_writes():
    """The others have lost the race; one that reads the new version may write again."""
    agenda, answers = Agenda(), {}
    row = RowServer(Row("row", network=1.0), agenda, RandomStreams(1))
    for name, at in [("a", 0.0), ("b", 0.5), ("c", 3.5)]:
        request = Request(lambda request, failure: answers.update({request.owner: (agenda.now(), failure)}), name, None)
        agenda.at(at, row.submit, request)
    agenda.run(20.0)
    assert {name: at for name, (at, _) in answers.items()} == {"a": 4.0, "b": 4.5, "c": 7.5}
    assert [name for name, (_, failure) in answers.items() if failure is None] == ["a", "c"]
    assert answers["b"][1].status_code == 409
    assert (row.load().requests, row.load().served, row.load().errors) == (3, 2, 1)


@given(starts=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=20), seed=st.integers(0, 100))
def test_a_row_is_written_as_often_as_was_confirmed(starts, seed):
    """At least once, and no caller waits forever."""
    agenda, failures = Agenda(), []
    row = RowServer(Row("row", network=Duration(0.1, "normal", spread=0.02)), agenda, RandomStreams(seed))
    for at in starts:
        agenda.at(at, row.submit, Request(lambda _, failure: failures.append(failure), None, None))
    agenda.run(20.0)
    assert len(failures) == len(starts)
    assert row.load().served == failures.count(None) >= 1

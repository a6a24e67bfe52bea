"""Which receives of a message were attempts."""

from hypothesis import given
from hypothesis import strategies as st

from abate.clients.sqs_receive_counts import ReceiveCounts
from abate.work.source import Back, Bury, Done, Message

FATES = {
    "untouched": Back(1.0, touched=False),
    "failed": Back(1.0),
    "again": Done(again=0.0),
    "lost": None,
}


@given(st.lists(st.sampled_from(sorted(FATES)), max_size=40), st.integers(1, 3))
def test_what_was_not_touched_is_no_attempt_and_again_begins_anew(fates, told):
    """However often one verdict is told, as after an error of SQS."""
    receives, attempts = ReceiveCounts(), 0
    for count, fate in enumerate(fates, 1):
        attempts += 1
        assert receives.attempts("a", count) == attempts
        if FATES[fate] is not None:
            for _ in range(told):
                receives.settled(Message("a", token=count), FATES[fate])
        attempts = 0 if fate == "again" else attempts - (fate == "untouched")


def test_what_is_gone_is_forgotten():
    """Done and buried messages take no memory."""
    receives = ReceiveCounts()
    for verdict in (Done(), Bury("fatal", "no")):
        receives.settled(Message("a", token=1), Back(0.0, touched=False))
        receives.settled(Message("a", token=2), verdict)
        assert receives.attempts("a", 3) == 3


def test_the_oldest_are_forgotten():
    """A million messages that go back do not fill the memory."""
    receives = ReceiveCounts(max_messages=10)
    for key in range(100):
        receives.settled(Message(key, token=1), Back(0.0, touched=False))
    known = [key for key in range(100) if receives.attempts(key, 9) == 8]
    assert known == list(range(80, 100))

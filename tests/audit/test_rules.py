"""Each rule finds the marked lines of its samples, and no others."""

import re
from pathlib import Path

import pytest

from abate.audit.auditing import ALL_RULES, audit
from abate.audit.rules import RULES
from abate.audit.settings import Settings

SAMPLES = sorted((Path(__file__).parent / "samples").glob("*.py"))
MARK = re.compile(r"# found: (.+)")
OF_A_PROGRAM = {"no-budget", "default-retries"}
"""Reported once per program: their own sample shows them."""


def marked(sample: Path) -> set[tuple[int, str]]:
    """Return the lines and rules that a sample marks; what follows a rule must be in the message."""
    found = set()
    for number, line in enumerate(sample.read_text("utf-8").splitlines(), 1):
        if mark := MARK.search(line):
            found |= {(number, part.strip()) for part in mark[1].split(",")}
    return found


def rules_of(sample: Path) -> set[str]:
    return {mark.split()[0] for _, mark in marked(sample)}


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_sample_has_the_marked_findings_and_no_others(sample):
    """Positive and negative samples of a family stand in one file."""
    rules = rules_of(sample)
    found = {
        (finding.spot.line, finding.rule.id): finding.spot.message for finding in audit([sample], Settings()).findings
    }
    expected = {(line, mark.split()[0]): mark.partition(" ")[2] for line, mark in marked(sample)}
    assert sorted(place for place in found if place[1] in rules) == sorted(expected)
    for place, text in expected.items():
        assert text in found[place]


def test_every_rule_has_a_positive_sample():
    """A rule without a sample is not known to find anything."""
    assert set().union(*map(rules_of, SAMPLES)) == {rule.id for rule in RULES}


def test_every_rule_says_what_happens_and_what_to_do():
    """A finding is of use only with its consequence and two ways out."""
    assert len({rule.id for rule in ALL_RULES}) == len(ALL_RULES)
    for rule in ALL_RULES:
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.id)
        assert rule.outage.endswith(".")
        assert rule.abate
        assert rule.fixes[""]
        assert rule.fix("a library that has no words of its own") == rule.fixes[""]

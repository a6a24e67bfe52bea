"""Small values, held against what dataclasses make."""

import copy
import dataclasses
import inspect
import pickle
import sys
from unittest.mock import ANY

import pytest
from hypothesis import given
from hypothesis import strategies as st

import abate
from abate.frozen import ComparedByFields, Frozen


class Point(Frozen):
    """Two fields, one with a default."""

    x: float
    y: float = 0.0


class Place(Point):
    """A field of its own behind those of its base."""

    name: str = "here"


class Even(Frozen):
    """Refuses odd numbers."""

    n: int

    def validate(self):
        if self.n % 2:
            raise ValueError(f"n must be even, not {self.n!r}")


class Lifted(Place):
    """Other defaults for inherited fields, with an annotation and without."""

    y: float = 1.0
    name = "there"


class Doubled(Point):
    """A field that is computed."""

    @property
    def y(self):
        return 2.0 * self.x


@dataclasses.dataclass(frozen=True)
class Model:
    """What `Place` is to be like."""

    x: float
    y: float = 0.0
    name: str = "here"


class Pair(ComparedByFields):
    """Mutable, with slots."""

    __slots__ = __match_args__ = ("a", "b")

    def __init__(self, a, b):
        self.a, self.b = a, b


ARGUMENTS = st.tuples(
    st.lists(st.integers(0, 2), max_size=4),
    st.dictionaries(st.sampled_from(["x", "y", "name", "z"]), st.integers(0, 2), max_size=4),
)


def made(kind, arguments):
    """An instance, or the type of the error that it was refused with."""
    args, kwargs = arguments
    try:
        return kind(*args, **kwargs)
    except TypeError:
        return TypeError


@given(ARGUMENTS)
def test_values_are_made_as_dataclasses_are(arguments):
    """The same arguments are taken and refused, by place and by name, and give the same fields."""
    value, model = made(Place, arguments), made(Model, arguments)
    assert (value is TypeError) == (model is TypeError)
    if value is not TypeError:
        assert repr(value) == repr(model).replace("Model", "Place")


@given(ARGUMENTS, ARGUMENTS)
def test_values_are_compared_and_hashed_by_their_fields(left, right):
    """Equal exactly where dataclasses would be, and then of one hash."""
    values, models = (made(Place, left), made(Place, right)), (made(Model, left), made(Model, right))
    if TypeError in values:
        return
    assert (values[0] == values[1]) == (models[0] == models[1])
    if values[0] == values[1]:
        assert hash(values[0]) == hash(values[1])


def test_values_of_two_types_differ():
    """Whatever their fields hold."""
    assert Point(1.0) != Model(1.0)
    assert Place(1.0) != Point(1.0)


def test_a_value_is_frozen():
    """Fields are neither set nor deleted, and none is added."""
    point = Point(1.0)
    with pytest.raises(AttributeError, match="a Point is frozen: 'x' cannot be set"):
        point.x = 2.0
    with pytest.raises(AttributeError, match="a Point is frozen: 'x' cannot be deleted"):
        del point.x
    with pytest.raises(AttributeError, match="'z' cannot be set"):
        point.z = 2.0
    assert point == Point(1.0)


def test_a_value_is_checked_at_construction():
    """A subclass refuses what cannot be."""
    assert Even(2).n == 2
    with pytest.raises(ValueError, match="n must be even, not 3"):
        Even(3)


@pytest.mark.parametrize("other", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_value_can_be_copied_and_pickled(other):
    """And is equal to itself then."""
    assert other(Point(1.0, 2.0)) == Point(1.0, 2.0)


def test_a_subclass_may_change_the_default_of_an_inherited_field():
    """With an annotation or without, the field stays in its place."""
    assert repr(Lifted(0.0)) == "Lifted(x=0.0, y=1.0, name='there')"
    assert Lifted(0.0, 2.0, "here") == Lifted(x=0.0, y=2.0, name="here")
    assert repr(Place(0.0)) == "Place(x=0.0, y=0.0, name='here')"
    assert abate.Backoff().base != type("Slow", (abate.Backoff,), {"base": 0.7})().base == 0.7


def test_a_subclass_may_compute_an_inherited_field():
    """A property takes the place of its value."""
    assert repr(Doubled(2.0)) == "Doubled(x=2.0, y=4.0)"


def test_values_match_by_place():
    """Patterns see the fields in order."""
    match Place(1.0, 2.0, "there"):
        case Place(x, y, name):
            assert (x, y, name) == (1.0, 2.0, "there")


def test_fields_make_a_mutable_object_comparable():
    """Equal by its fields, shown by them, and not hashable, since they change."""
    pair = Pair(1, 2)
    assert pair == Pair(1, 2)
    assert pair != Pair(1, 3)
    assert pair != (1, 2)
    assert repr(pair) == "Pair(a=1, b=2)"
    with pytest.raises(TypeError):
        hash(pair)


def test_a_class_has_the_signature_of_its_fields():
    """Names, types and defaults, as that of a dataclass has them; with another constructor, that one's."""

    class Both(Frozen):
        x: float

        def __init__(self, both: float) -> None:
            super().__init__(both)

    assert inspect.signature(Place) == inspect.signature(Model).replace(return_annotation=inspect.Signature.empty)
    assert list(inspect.signature(Both).parameters) == ["both"]
    assert not hasattr(Point(1.0), "__signature__")


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations are evaluated when a class is made")
def test_annotations_are_not_evaluated_for_the_fields():
    """A module without the __future__ import may name in them what it imports for type checkers alone."""
    namespace = {"Frozen": Frozen}
    exec("class Route(Frozen):\n    to: Missing\n    by: str = 'sea'", namespace)
    route = namespace["Route"]("here")
    assert (route.to, route.by) == ("here", "sea")
    assert list(inspect.signature(namespace["Route"]).parameters) == ["to", "by"]


class Anything:
    """Equal to whatever it is compared with, as `unittest.mock.ANY` is."""

    def __eq__(self, other):
        return True

    def __hash__(self):
        return 0


VALUES = [Point(1.0), Pair(1, 2), abate.Policy(on=OSError), abate.events.Recovered("a", 2, 0.1)]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_leaves_it_to_others_to_be_equal_to_it(value):
    """From either side, alone or in a list; to anything else it is unequal."""
    assert value == Anything() == value
    assert [value] == [ANY]
    assert (value == 1, value != 1, value == None) == (False, True, False)  # noqa: E711
    assert value.__eq__(1) is NotImplemented

"""What a controller counts of its adds, whatever the store."""

import abate


def test_a_controller_counts_what_it_adds_to_a_store(store):
    """Every add, and those of a key that was waiting already, for now or for later, or was to come back."""

    @abate.controller(store=store, name="orders")
    def reconcile(key): ...

    for key in ("a", "a", "b"):
        reconcile.add(key)
    assert (reconcile.adds, reconcile.coalesced) == (3, 1)
    reconcile.add("later", after=60.0)
    reconcile.add("later")
    assert (reconcile.adds, reconcile.coalesced) == (5, 2)
    queue = store.queue("orders")
    taken = queue.receive(3)
    for _ in range(2):
        reconcile.add(taken[0].key)  # in hand: the first is fresh, and comes back after it
    assert (reconcile.adds, reconcile.coalesced) == (7, 3)
    queue.bury(taken[1], "no address")
    reconcile.add(taken[1].key)
    assert (reconcile.adds, reconcile.coalesced) == (8, 3)

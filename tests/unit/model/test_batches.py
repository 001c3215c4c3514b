"""Items a few at a time."""

import pytest

from mailslice.model.batches import batches, batches_by_key, batches_by_weight


def test_batches_are_drawn_as_they_are_needed():
    drawn = []
    found = batches((drawn.append(one) or one for one in range(5)), 2)
    assert (next(found), drawn) == ([0, 1], [0, 1])
    assert list(found) == [[2, 3], [4]]


def test_batches_by_key_are_of_one_key_and_keep_the_order() -> None:
    pairs = iter([("a", 1), ("b", 2), ("a", 3), ("a", 4), ("b", 5)])
    assert list(batches_by_key(pairs, 2)) == [("a", [1, 3]), ("a", [4]), ("b", [2, 5])]
    assert list(batches_by_key(iter(()), 2)) == []


@pytest.mark.parametrize(
    ("weights", "lists"),
    [
        ([], []),
        ([1, 1, 1], [[1, 1], [1]]),
        ([3, 2, 1], [[3, 2], [1]]),
        ([3, 3, 1], [[3], [3, 1]]),
        ([9, 1, 9], [[9], [1], [9]]),
    ],
)
def test_a_list_ends_at_its_size_and_before_its_weight_is_over_the_limit(weights, lists):
    assert list(batches_by_weight(weights, 2, int, 5)) == lists

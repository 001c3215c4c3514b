"""Items a few at a time."""

from mailslice.model.batches import batches


def test_batches_are_drawn_as_they_are_needed():
    drawn = []
    found = batches((drawn.append(one) or one for one in range(5)), 2)
    assert (next(found), drawn) == ([0, 1], [0, 1])
    assert list(found) == [[2, 3], [4]]

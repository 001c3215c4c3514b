"""What a run finds, records, and a later run deletes: with every kind of blob beside each other."""


def test_first(heap):
    orphan, header, body = heap.blob(), heap.blob(), heap.blob()
    heap.row(header, body)
    unknown = heap.blob("backup/readme.txt")
    second = heap.twice()
    assert (second["orphans"], second["gcedBlobCount"], second["candidates"], second["errorCount"]) == (1, 1, 0, 0), second
    assert heap.keys() == {header, body, unknown}
    assert heap.kept() == {orphan}

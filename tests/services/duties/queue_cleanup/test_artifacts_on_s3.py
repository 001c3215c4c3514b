"""A cleanup whose plans, reports and Data Docs are on S3, as on any cluster.

test_spark_clusters.py has the clusters.
"""


def filled(view):
    view.start_at(0)
    for number in range(4):
        view.insert(number, dead=True)
    return view.insert(5, dead=False)


def assert_clean(view, live, report):
    assert (report["status"], report["planned"], report["applied"], report["marks"]["dropped"]) == (
        "done",
        4,
        4,
        4,
    )
    assert [view.rows(number) for number in (0, 1, 2, 3, 5)] == [set()] * 4 + [{live}]
    assert (view.browse_start, view.content_start) == (view.at(5), view.at(5))


def test_plans_reports_and_data_docs_on_s3(view, with_spark):
    live = filled(view)
    prefix = f"s3a://{view.settings.own.bucket}/artifacts"
    view.settings = view.settings.model_copy(
        update={"duty": view.settings.duty.model_copy(update={"artifacts": prefix})}
    )
    report = view.clean()
    assert_clean(view, live, report)
    assert report["artifacts"].startswith(f"{prefix}/runs/queue_cleanup/{view.queue}/")
    keys = {found.key for found in view.stores.own_blobs.list()}
    run = report["artifacts"].removeprefix(f"s3a://{view.settings.own.bucket}/")
    assert {
        f"{run}/{name}.json" for name in ("plan", "check", "applied", "verify", "report")
    } <= keys
    assert any(key.startswith(f"{run}/plan/part-") for key in keys)
    assert "artifacts/data_docs/index.html" in keys
    assert report["dataDocs"].removeprefix(f"s3a://{view.settings.own.bucket}/") in keys

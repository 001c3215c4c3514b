"""A store that dies in the middle of a run.

Exit 4 with its address in under 30 s, and the next run goes on.
"""

import asyncio
import threading
import time

import pytest

from mailslice.engine import worker_stores
from mailslice.maintenance.ledger import Ledger
from mailslice.model.errors import StoreUnavailable
from tests.services.worker.cuttable import Cuttable


@pytest.fixture
def through(view):
    """The view's settings by way of a cable that can be cut, whose event loop is a thread's."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def do(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(10)

    direct = view.settings
    cable = Cuttable("127.0.0.1", direct.cassandra.port)
    do(cable.mend())
    view.settings = direct.model_copy(
        update={"cassandra": direct.cassandra.model_copy(update={"port": cable.port})}
    )
    yield view, cable, do
    do(cable.cut())
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


@pytest.mark.parametrize("step", ["plan", "apply"])
def test_cassandra_that_is_gone_is_named_and_the_next_run_goes_on(through, step):
    view, cable, do = through
    view.start_at(0)
    view.insert(0, dead=True)
    request = view.request()
    if step == "apply":
        view.steps(request, "plan", "check")
    do(cable.cut())
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{cable.port}"):
        view.steps(request, step)
    assert time.monotonic() - began < 60
    assert len(view.rows(0)) == 1
    do(cable.mend())
    worker_stores.close_all()  # the next run is another process
    report = view.clean()
    assert (report["applied"], view.rows(0)) == (1, set())
    assert Ledger(view.stores, view.settings).last("queue_cleanup", view.queue)["status"] == "done"

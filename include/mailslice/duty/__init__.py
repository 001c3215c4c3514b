"""What all duties share: the road through the five steps, run folders, ledger, locks, report. Doors: `duty.road.run_step`, `run_all`, `duty.registry`."""

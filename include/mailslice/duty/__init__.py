"""What all duties share: the runner of the five steps, run folders, ledger, locks, report. Doors: `duty.road.run_step`, `run_all`, `duty.registry`."""

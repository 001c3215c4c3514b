"""What all duties share: the runner of the five steps, run folders, ledger, locks, report. Doors: `maintenance.runner.run_step`, `run_all`, `duty.registry`."""

"""What all duties share: the runner of the five steps, run folders, ledger, locks, report.

Interfaces: `maintenance.runner.run_step`, `run_all`, `maintenance.registry`.
"""

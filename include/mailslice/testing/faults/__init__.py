"""The test kit of crashes and faults. It kills processes or takes stores away at named points, and
balances the books of a queue afterwards.

`matrix` runs an operation of the hot path in a process of its own (`child`) up to a crash point
(`model.crash`). There it kills the process, or a `proxy` takes a store away. `books` then finds
mails that were lost, handed out after their end, or left without content. docs/faults.md shows how
to use the kit.
"""

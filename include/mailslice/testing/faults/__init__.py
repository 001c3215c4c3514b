"""The test kit of crashes and faults: processes that are killed at named points, stores that go
away there, and books that are balanced afterwards.

`matrix` drives it: an operation of the hot path runs in a process of its own (`child`), up to a
point of `model.crash`; there it is killed, or a store is taken from it by a `proxy`. `books` then
says whether a mail was lost, handed out after its end, or left without content. docs/faults.md says
how to use it.
"""

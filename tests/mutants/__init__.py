"""Mutation testing: small mistakes in a copy of the code, each of which some test must notice.

    listed.py       the mistakes: place, change, and the tests that guard the place
    harness.py      applies one to a copy of the repository and runs these tests
    __main__.py     `python -m tests.mutants`, as `make mutants` does

A mistake that no test notices is a gap, or no mistake: then `listed.EXPLAINED` says why
(`docs/decisions/053-mutation-testing.md`).
Plants (`tests/plants/`) are switched on inside a process, for the simulation; a mutant is any change of text.
"""

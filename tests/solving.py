"""Solvers of tasks: what the docstring of a task says, without its code. They stand in files named solvers_*.py."""

from collections.abc import Callable

# A solver is given the task, for its settings, and a sequence by the names of its ids, None where the model must say
# something. It returns what may stand at each of these places, in their order: all that the docstring allows.
Solver = Callable[[object, list[str | None]], list[set[str]]]
SOLVERS: dict[str, Solver] = {}


def solver(*tasks: str) -> Callable[[Solver], Solver]:
    """Of the tasks in conf/task with these names."""

    def register(solve: Solver) -> Solver:
        SOLVERS.update(dict.fromkeys(tasks, solve))
        return solve

    return register


def known(symbols: list[str]) -> list[set[str]]:
    """One answer, the only one."""
    return [{symbol} for symbol in symbols]

"""What the benchmarks share within one run, and the table they print at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

KEY = pytest.StashKey["Report"]()


@dataclass
class Report:
    """Seconds of each benchmark (wall, CPU) for ratios, and the lines (what, measured, aim)."""

    seconds: dict[tuple, tuple[float, float]] = field(default_factory=dict)
    lines: list[tuple[str, str, str]] = field(default_factory=list)

    def line(self, what: str, measured: str, aim: str = "") -> None:
        self.lines.append((what, measured, aim))

    def ratio(self, slow: tuple, fast: tuple) -> tuple[float, float]:
        """Wall and CPU time of ``slow`` over that of ``fast``; NaN if one of them did not run."""
        missing = (float("nan"),) * 2
        pairs = zip(self.seconds.get(slow, missing), self.seconds.get(fast, missing), strict=True)
        wall, cpu = (a / b for a, b in pairs)
        return wall, cpu


@pytest.fixture(scope="session")
def report(pytestconfig: pytest.Config) -> Report:
    return pytestconfig.stash.setdefault(KEY, Report())


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    lines = config.stash.get(KEY, Report()).lines
    if lines:
        terminalreporter.section("speed, beside what is aimed at")
        table = [("", "measured", "aim"), *lines]
        widths = [max(len(row[i]) for row in table) for i in range(2)]
        for row in table:
            terminalreporter.write_line(f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}")

"""Print what came of each cell of the kill matrix, whether it failed or not and whichever process ran it.

Knows rows and pytest's reports; knows no process.
"""

import dataclasses

PROPERTY = "kill matrix"
_HEADERS = ("point", "killed", "orphans", "port", "serves", "command", "as expected", "status")


@dataclasses.dataclass(frozen=True)
class Cell:
    """What was seen after one kill.

    Attributes:
        number: its place in the table.
        orphans: processes that belong to no service.
        port: answers, free or held (neither).
        serves: the revision that runs; 0: none.
        code: the command's exit code; None: it was killed, or there is none.
        status: what `platform status` tells.
    """

    number: int
    point: str
    killed: str
    orphans: int
    port: str
    serves: int
    code: int | None
    status: str

    def row(self, is_right):
        serves = f"revision {self.serves}" if self.serves else "nothing"
        code = "-" if self.code is None else f"exit {self.code}"
        right = "yes" if is_right else "NO"
        return (self.point, self.killed, str(self.orphans), self.port, serves, code, right, self.status)


def write_table(reporter):
    """At the end of a session, from the reports of all its tests."""
    reports = [*reporter.stats.get("passed", ()), *reporter.stats.get("failed", ())]
    found = [(Cell(**value), one.passed) for one in reports for key, value in one.user_properties if key == PROPERTY]
    if not found:
        return
    rows = [_HEADERS, *(cell.row(is_right) for cell, is_right in sorted(found, key=lambda one: one[0].number))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADERS))]
    reporter.section("kill matrix")
    for row in rows:
        reporter.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

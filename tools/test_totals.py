#!/usr/bin/env python3
"""Adds up the JUnit files of a folder and prints, alone on the last line, "N passed, N failed".

    tools/test_totals.py [--failed-stages N] FOLDER
    tools/test_totals.py --self-test

ctest knows programs, GoogleTest knows cases: where a program's output lists its cases they are
counted, else the program is one. A skipped test counts as failed, and so does a stage that failed
without a failed test (a build, a formatter). Exit 1 unless all passed and something ran.
"""
import argparse
import re
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

PASSED = re.compile(r"^\[  PASSED  \] (\d+) tests?", re.M)
FAILED = re.compile(r"^\[  FAILED  \] (\d+) tests?", re.M)
SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) tests?", re.M)


def number(pattern, text):
    match = pattern.search(text)
    return int(match.group(1)) if match else 0


def count_case(case):
    """(passed, failed) of one <testcase>."""
    failed_here = (case.get("status") in ("fail", "notrun", "disabled")
                   or any(case.find(tag) is not None for tag in ("failure", "error", "skipped")))
    output = "".join(case.findtext(tag) or "" for tag in ("system-out",))
    passed = number(PASSED, output)
    failed = number(FAILED, output) + number(SKIPPED, output)
    if passed + failed == 0:
        return (0, 1) if failed_here else (1, 0)
    # A crash after some passed cases leaves no FAILED line.
    return passed, max(failed, 1) if failed_here else failed


def totals(folder):
    passed = failed = 0
    for path in sorted(folder.glob("*.xml")):
        for case in ElementTree.parse(path).getroot().iter("testcase"):
            good, bad = count_case(case)
            passed, failed = passed + good, failed + bad
    return passed, failed


GTEST_OK = "[==========] Running 3 tests\n[  PASSED  ] 3 tests.\n"
GTEST_BAD = "[  PASSED  ] 2 tests.\n[  FAILED  ] 1 test, listed below:\n[  FAILED  ] A.b\n"
CASES = (
    ('<testcase name="a" status="run"/>', (1, 0)),
    ('<testcase name="a"><failure message="x"/></testcase>', (0, 1)),
    ('<testcase name="a"><skipped/></testcase>', (0, 1)),
    ('<testcase name="a" status="notrun"/>', (0, 1)),
    (f'<testcase name="a" status="run"><system-out>{GTEST_OK}</system-out></testcase>', (3, 0)),
    (f'<testcase name="a" status="fail"><failure/><system-out>{GTEST_BAD}</system-out></testcase>',
     (2, 1)),
    ('<testcase name="a" status="fail"><failure/><system-out>killed</system-out></testcase>',
     (0, 1)),
    ('<testcase name="a" status="run"/><testcase name="b"><error/></testcase>', (1, 1)),
)


def self_test():
    wrong = 0
    for xml, expected in CASES:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a.xml").write_text(f"<testsuite>{xml}</testsuite>", encoding="utf-8")
            got = totals(Path(folder))
        if got != expected:
            wrong += 1
            print(f"{xml}\n  expected {expected}, got {got}")
    print(f"test_totals.py: {len(CASES) - wrong} right, {wrong} wrong")
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--failed-stages", type=int, default=0)
    parser.add_argument("--self-test", action="store_true")
    args = parser.parse_args()
    if args.self_test:
        sys.exit(1 if self_test() else 0)
    passed, failed = totals(args.folder)
    if failed == 0:
        failed = args.failed_stages
    print(f"{passed} passed, {failed} failed")
    sys.exit(0 if failed == 0 and passed > 0 else 1)


if __name__ == "__main__":
    main()

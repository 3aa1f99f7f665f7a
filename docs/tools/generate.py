"""Generate the parts of the pages under docs/ that come from the code: ``python docs/tools/generate.py``.

A region of a page is between the comments ``<!-- generated: NAME -->`` and ``<!-- end -->``; its contents are replaced.
``--check`` changes nothing, prints the differences, and exits with 1 if there are any. Every plugin of the repository must be
installed. The generated text is committed, so that the pages in the repository are complete.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path

import contract
import jobs
import programs
import stores
from source import UndocumentedError

DOCS = Path(__file__).parents[1]
REGIONS = {**stores.REGIONS, **contract.REGIONS, **programs.REGIONS, **jobs.REGIONS}
"""Name of a region to the function that returns its text."""
_REGION = re.compile(r"^(<!-- generated: (.+?) -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)


def regenerate(text: str, seen: set[str]) -> str:
    """Return the page with new contents of its regions, and add their names to ``seen``.

    Raises KeyError for an unknown region, and ValueError for a region without an end.
    """
    if len(_REGION.findall(text)) != text.count("<!-- generated: "):
        raise ValueError("a region has no <!-- end --> on a separate line")

    def fill(found: re.Match[str]) -> str:
        seen.add(found[2])
        return f"{found[1]}\n{REGIONS[found[2]]().strip()}\n\n{found[3]}"

    return _REGION.sub(fill, text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Generate the parts of the pages under docs/ that come from the code.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; print the differences; exit with 1 if there are any"
    )
    check = parser.parse_args().check
    stale = 0
    seen: set[str] = set()
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        try:
            new = regenerate(text, seen)
        except KeyError as error:
            print(f"{page}: unknown region {error}; known are: {', '.join(REGIONS)}", file=sys.stderr)
            return 2
        except (UndocumentedError, ValueError) as error:
            print(f"{page}: {error}", file=sys.stderr)
            return 2
        if new != text:
            stale += 1
            name = page.relative_to(DOCS.parent).as_posix()
            old_lines, new_lines = text.splitlines(keepends=True), new.splitlines(keepends=True)
            sys.stdout.writelines(difflib.unified_diff(old_lines, new_lines, name, f"{name} (by the code)"))
            if not check:
                page.write_text(new, encoding="utf-8")
    if missing := REGIONS.keys() - seen:
        print(f"no page has the regions {', '.join(sorted(missing))}", file=sys.stderr)
        print("add <!-- generated: NAME --> and <!-- end --> to a page, and run this again", file=sys.stderr)
        return 2
    if check and stale:
        print(f"{stale} pages are stale: run python docs/tools/generate.py", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

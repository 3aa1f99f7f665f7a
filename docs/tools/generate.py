"""Write into the pages under docs/ what the code knows better: ``python docs/tools/generate.py``.

A page says where by a pair of comments, ``<!-- generated: NAME -->`` and ``<!-- end -->``; what stands between them is
replaced. ``--check`` changes nothing and prints what would change, with exit code 1 if anything would. Every plugin of the
repository must be installed. What is written is committed, so that pages are whole in the repository.
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
"""Name to what makes the text."""
_REGION = re.compile(r"^(<!-- generated: (.+?) -->\n).*?^(<!-- end -->)$", re.MULTILINE | re.DOTALL)


def renewed(text: str, met: set[str]) -> str:
    """The page with its regions written anew. Raises KeyError for a name that nothing makes, ValueError for an open region."""
    if len(_REGION.findall(text)) != text.count("<!-- generated: "):
        raise ValueError("a region has no <!-- end -->, or not on a line of its own")

    def fill(found: re.Match[str]) -> str:
        met.add(found[2])
        return f"{found[1]}\n{REGIONS[found[2]]().strip()}\n\n{found[3]}"

    return _REGION.sub(fill, text)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write into the pages under docs/ what the code knows better.")
    parser.add_argument(
        "--check", action="store_true", help="change nothing; print what would change; exit with 1 if anything would"
    )
    check = parser.parse_args().check
    stale = 0
    met: set[str] = set()
    for page in sorted(DOCS.rglob("*.md")):
        text = page.read_text(encoding="utf-8")
        try:
            new = renewed(text, met)
        except KeyError as error:
            print(f"{page}: nothing makes the region {error}; there are: {', '.join(REGIONS)}", file=sys.stderr)
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
    if missing := REGIONS.keys() - met:
        print(f"no page has a place for: {', '.join(sorted(missing))}", file=sys.stderr)
        print("write <!-- generated: NAME --> and <!-- end --> where it belongs, and run this again", file=sys.stderr)
        return 2
    if check and stale:
        print(f"{stale} pages are stale: run python docs/tools/generate.py", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""Put built pages into the folder of their version on the published site, and list the versions.

    python .github/publish_docs.py docs/_build site v0.1.0

The site has a folder for each release, `stable` as the latest of them, `versions.json`, which the sidebar of every page
reads, a first page that leads to `stable`, and a page for those that are not there.
"""

import json
import re
import shutil
import sys
from pathlib import Path

VERSION = re.compile(r"\d+\.\d+\.\d+")
NOT_FOUND = r"""<!doctype html><meta charset="utf-8"><title>Not found</title>
<p>There is no such page in this version. <a id="latest">Search the latest one.</a></p>
<script>
  const folder = /(?:(?:stable|\d+\.\d+\.\d+)\/.*|[^\/]*)$/;
  document.getElementById("latest").href = location.pathname.replace(folder, "stable/search.html");
</script>
"""
"""Served in place of a page that is not there, at whatever address."""


def publish(pages: Path, site: Path, tag: str) -> list[str]:
    """Copy the pages; the versions, latest first."""
    version = tag.removeprefix("v")
    if not VERSION.fullmatch(version):
        raise SystemExit(f"The tag must be v and a version such as v0.1.0; got {tag!r}.")
    if not (pages / "index.html").exists():
        raise SystemExit(f"There are no pages in {pages}: build them first.")
    kept = {folder.name for folder in site.iterdir() if VERSION.fullmatch(folder.name)} | {version}
    versions = sorted(kept, key=lambda name: [int(part) for part in name.split(".")], reverse=True)
    for folder in [version] + ["stable"] * (versions[0] == version):
        shutil.rmtree(site / folder, ignore_errors=True)
        shutil.copytree(pages, site / folder)
    (site / "versions.json").write_text(json.dumps(["stable", *versions]))
    (site / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=stable/">\n')
    (site / "404.html").write_text(NOT_FOUND)
    (site / ".nojekyll").touch()  # folders that begin with an underscore are pages too
    return versions


if __name__ == "__main__":
    print(publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]))

"""Zarr folders: whether one can be read as numbers and text and never as code, and names that serve as file names."""

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

DESCRIPTIONS = {"zarr.json", ".zarray", ".zmetadata"}
LISTS = {"codecs", "filters", "compressor"}

CODECS = {
    *("bytes", "transpose", "sharding_indexed", "vlen-utf8", "vlen-bytes"),
    *("zstd", "blosc", "gzip", "zlib", "lz4", "bz2", "lzma", "shuffle", "delta", "fixedscaleoffset", "packbits"),
    *("crc32", "crc32c", "adler32", "fletcher32"),
}
"""Codecs of numbers and text, under the names of Zarr 2 and 3; whatever is not among them might be `pickle`."""


NAMES = "names"
"""Attribute of a group: `{file name: name}` of the variables whose name cannot be that of a file."""

LONGEST = 120


def file_name(name: str) -> str:
    """A name as it is if any file system takes it; else with "%" and hexadecimal digits for what it would not take."""
    odd = r"[^\w .-]|^[. ]|[. ]$|^_(?=_)|(?<=^zarr)[.]"
    safe = re.sub(
        odd, lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode("utf-8", "surrogatepass")), name
    )
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return (safe or "%") if len(safe.encode()) <= LONGEST else f"{safe[: LONGEST // 4]}%{digest}"


def names(attributes: Mapping[str, Any]) -> dict[str, str]:
    """`{file name: name}` from the attributes of a group."""
    found = attributes.get(NAMES)
    return {str(key): str(name) for key, name in found.items()} if isinstance(found, dict) else {}


def objection(path: Path) -> str | None:
    """What in a folder could be anything but numbers and text, in words; None if nothing could.

    Only descriptions are read. A link is objected to because it leads out of what was looked at.
    """
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            found = Path(folder, name)
            where = found.relative_to(path)
            if found.is_symlink():
                return f"{where} is a link"
            if name in DESCRIPTIONS:
                try:
                    unknown = sorted(set(_codecs(json.loads(found.read_text()))) - CODECS)
                except Exception as error:
                    return f"{where} cannot be read ({type(error).__name__}: {error})"
                if unknown:
                    return f"{where} is not a description of plain numbers or text: it asks for the codecs {unknown}"
    return None


def _codecs(tree: Any) -> Iterator[str]:
    """Names of all codecs in a description, also of codecs within codecs and in consolidated metadata."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key in LISTS:
                for codec in value if isinstance(value, list) else [value]:
                    name = codec.get("name", codec.get("id")) if isinstance(codec, dict) else codec
                    if name is not None:
                        yield str(name).removeprefix("numcodecs.")
            yield from _codecs(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _codecs(value)

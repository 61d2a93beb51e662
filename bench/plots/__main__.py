"""Every picture of every GPU that has results: docs/plots/<picture>-<gpu>.svg and .png.

    python -m bench.plots [--results bench/results] [--out docs/plots]

needs matplotlib and no GPU.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .. import table
from . import PICTURES, PLOTS


def main() -> None:
    """Draws; a picture whose results are not there is left out, and said to be."""
    parser = argparse.ArgumentParser(prog="python -m bench.plots", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, default=table.RESULTS, help="folder of <gpu>/<suite>.csv")
    parser.add_argument("--out", type=Path, default=PLOTS, help="folder of the pictures")
    args = parser.parse_args()
    folders = table.folders(args.results)
    if not folders:
        parser.error(f"no <gpu>/<suite>.csv in {args.results}; make results measures one")
    args.out.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        for name, picture in PICTURES.items():
            try:
                files = {kind: picture.of(folder, kind) for kind in ("svg", "png")}
            except ValueError as lacking:
                print(f"left out: {name}-{folder.name}: {lacking}")
                continue
            for kind, content in files.items():
                path = args.out / f"{name}-{folder.name}.{kind}"
                path.write_bytes(content)
                print(f"written: {path}")


if __name__ == "__main__":
    main()

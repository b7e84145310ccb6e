"""A sample in MMSpec's form of photographs that installed packages bring: nothing is downloaded or kept here.

scikit-learn and matplotlib, which the set-up installs, have three; scikit-image's wheel has nineteen more.
"""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

PACKAGES = {
    "sklearn": ("datasets/images", ("china.jpg", "flower.jpg")),
    "matplotlib": ("mpl-data/sample_data", ("grace_hopper.jpg",)),
    "skimage": (
        "data",
        (
            "astronaut.png", "brick.png", "camera.png", "cell.png", "chelsea.png", "clock_motion.png", "coffee.png",
            "coins.png", "grass.png", "gravel.png", "hubble_deep_field.jpg", "ihc.png", "moon.png",
            "motorcycle_left.png", "motorcycle_right.png", "page.png", "retina.jpg", "rocket.jpg", "text.png",
        ),
    ),
}  # fmt: skip
"""Every package's folder of photographs, and their names."""
TASKS = {
    "general vqa": ("What is in the middle of the picture?",),
    "image captioning": ("Describe this image in detail.",),
    "multi-turn conversation": ("What do you see?", "And what is behind it?", "Which of the two is larger?"),
}


def photographs() -> list[Path]:
    """Return the photographs that are installed here, those of the set-up first."""
    found = []
    for package, (folder, names) in PACKAGES.items():
        # Found, not imported: a package's own libraries need not be there.
        spec = find_spec(package)
        places = spec.submodule_search_locations if spec is not None else None
        found += [Path(place) / folder / name for place in places or () for name in names]
    return [path for path in found if path.is_file()]


def write_mmspec(folder: Path, pictures: list[Path]) -> Path:
    """Write a folder in MMSpec's form with one sample a picture, its tasks in turns, and return it."""
    (folder / "images").mkdir(parents=True)
    lines = []
    for number, picture in enumerate(pictures):
        task = list(TASKS)[number % len(TASKS)]
        name = f"own_{number:03d}{picture.suffix}"
        shutil.copy(picture, folder / "images" / name)
        sample = {"id": f"own_{number:03d}", "image": name, "turns": TASKS[task], "category": "own", "topic": task}
        lines.append(json.dumps(sample))
    (folder / "mmspec.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder

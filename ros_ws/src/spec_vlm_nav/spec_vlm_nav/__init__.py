"""What a robot needs beside the edge's decoder: navigator, motion, safety, bridge, robots, and the ROS 2 nodes."""

import sys
from importlib import import_module
from importlib.util import find_spec

_missing = [name for name in ("speculation", "msgspec") if find_spec(name) is None]
if _missing:
    raise ImportError(
        f"spec_vlm_nav needs {' and '.join(_missing)}, which {sys.executable} (Python {sys.version.split()[0]}) cannot "
        "find: run 'make setup' in the project's folder with the ROS sourced that this shell uses, then source "
        "ros_ws/install/setup.bash of that folder"
    )
import_module("speculation.program_exit").take_signals()

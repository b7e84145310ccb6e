"""Build of the ament_python package; `colcon build` calls it."""

import shlex
import sys
from glob import glob
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.egg_info import egg_info

NODE_NAMES = (
    "action_executor",
    "doctor",
    "find",
    "go2_bridge",
    "go2_camera",
    "lifecycle_manager",
    "sim_go2",
    "stop_watchdog",
    "vlm_nav",
    "web",
)
NODES = {
    **{name: f"spec_vlm_nav.nodes.{name}" for name in NODE_NAMES},
    "bag_player": "vlm_nav_evaluation.nodes.bag_player",
}


class EggInfo(egg_info):
    """Also writes the environment hook of colcon.pkg, which must know the project's folder and the nodes' Python.

    Of the commands that colcon runs, this is the one that installs by copy and by link have in common; its output lies
    in the build space.
    """

    def run(self) -> None:
        """Write the metadata, write the hook, and have the hook installed."""
        super().run()
        # colcon and a workspace of the user's own may link here
        package = Path(__file__).resolve().parent
        text = (package / "hook" / "python_path.sh.in").read_text(encoding="utf-8")
        text = text.replace("@PROJECT@", shlex.quote(str(package.parents[2])))
        text = text.replace("@PYTHON@", "{}.{}".format(*sys.version_info))
        hook = Path(self.egg_info).resolve() / "python_path.sh"
        hook.write_text(text, encoding="utf-8")
        self.distribution.data_files.append(("share/spec_vlm_nav/hook", [str(hook)]))


setup(
    name="spec_vlm_nav",
    version="0.2.0",
    packages=find_packages(),
    # a workspace that is installed by copy reads them here; launch files read those of share/
    package_data={"spec_vlm_nav": ["config/*.*"], "spec_vlm_nav.web": ["page.html"]},
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/spec_vlm_nav"]),
        ("share/spec_vlm_nav", ["package.xml"]),
        ("share/spec_vlm_nav/examples", sorted(glob("examples/*.py"))),
        ("share/spec_vlm_nav/launch", sorted(glob("launch/*.launch.py"))),
        ("share/spec_vlm_nav/config", sorted(glob("config/*.yaml"))),
    ],
    zip_safe=True,
    # by this, colcon test runs pytest
    extras_require={"test": ["pytest"]},
    cmdclass={"egg_info": EggInfo},
    entry_points={"console_scripts": [f"{node} = {module}:main" for node, module in NODES.items()]},
)

"""Build of the ament_python package; `colcon build` calls it."""

from glob import glob

from setuptools import find_packages, setup

NODES = ("action_executor", "bag_player", "go2_bridge", "sim_go2", "vlm_nav")

setup(
    name="spec_vlm_nav",
    version="0.1.0",
    packages=find_packages(),
    data_files=[
        ("share/ament_index/resource_index/packages", ["resource/spec_vlm_nav"]),
        ("share/spec_vlm_nav", ["package.xml"]),
        ("share/spec_vlm_nav/launch", sorted(glob("launch/*.launch.py"))),
        ("share/spec_vlm_nav/config", sorted([*glob("config/*.yaml"), *glob("config/*.json")])),
    ],
    zip_safe=True,
    entry_points={"console_scripts": [f"{node} = spec_vlm_nav.nodes.{node}:main" for node in NODES]},
)

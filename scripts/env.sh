# Source this: puts .venv, the ROS 2 prefix and the built workspace on the paths of a bash shell.
_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [ ! -x "$_root/.venv/bin/python" ] || [ ! -f "$_root/ros_ws/install/setup.bash" ]; then
    echo "not set up yet: run 'make setup' first" >&2
    unset _root
    return 1
fi
# links followed: in a folder whose path colcon cannot take, both lie elsewhere
VIRTUAL_ENV="$(cd "$_root/.venv" && pwd -P)"
export VIRTUAL_ENV PATH="$VIRTUAL_ENV/bin:$PATH"
_options="$-"
set +u
. "$(cd "$_root/ros_ws/install" && pwd -P)/setup.bash"
case "$_options" in *u*) set -u ;; esac
# A robot's own network never sees the simulated one unless this is set otherwise.
export ROS_AUTOMATIC_DISCOVERY_RANGE="${ROS_AUTOMATIC_DISCOVERY_RANGE:-LOCALHOST}"
# What Python prints, and the file with the path of this folder, are UTF-8 in every locale.
export PYTHONUTF8=1
unset _root _options

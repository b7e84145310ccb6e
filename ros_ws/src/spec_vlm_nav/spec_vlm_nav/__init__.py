"""The robot's face: link to the verifier, decoding on the edge, safety, and the ROS 2 nodes."""

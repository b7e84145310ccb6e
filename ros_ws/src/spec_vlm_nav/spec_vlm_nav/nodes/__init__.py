"""Thin ROS 2 nodes, one a file; rclpy is imported here and nowhere else."""
